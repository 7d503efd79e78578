import contextlib
import re
import shutil

from PIL import Image

from tasks.search.indexes import build_index, open_index
from tasks.search.page import write_search_page
from tasks.study import load_context
from tests.references.answered_projects import REQUEST

HOSTILE = "<img src=x onerror=alert(1)>"


def test_a_page_shows_the_pictures_and_escapes_their_names(searched_project, tmp_path):
    photos = tmp_path / f"photos {HOSTILE}"
    shutil.copytree(searched_project / "photos" / "flower-00", photos)
    query = tmp_path / f"{HOSTILE}.png"
    Image.open(photos / "1.jpg").save(query)
    shutil.copy(photos / "0.jpg", photos / f"{HOSTILE}.jpg")
    copy = tmp_path / "project"
    shutil.copytree(searched_project, copy)
    with contextlib.chdir(copy):
        context = load_context(REQUEST)
        build_index(context, photos)
        opened = open_index(context, photos)
        found = opened.search_files([query], 9)
        (photos / "5.jpg").unlink()
        write_search_page(
            tmp_path / "new" / "page.html",
            title="flowers",
            queries=[query],
            found=found,
            index=opened.index,
            show_score=opened.show_score,
        )
    text = (tmp_path / "new" / "page.html").read_text(encoding="utf-8")
    assert "<img src=x" not in text
    assert "&lt;img src=x onerror=alert(1)&gt;.jpg" in text
    assert re.findall(r'src="(?!data:image/jpeg;base64,)', text) == []
    # The query, nine neighbours, one of which is gone.
    assert text.count('src="data:image/jpeg') == 9
    assert text.count("no longer there") == 1
    assert "similarity 1.000" in text
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["page.html"]
