import contextlib
import re
import shutil

import pytest
from typer.testing import CliRunner

from flows.cli import app


@pytest.fixture(scope="module")
def project(answered_project, tmp_path_factory):
    """A copy of the answered project, with files that are no images among its photos."""
    folder = tmp_path_factory.mktemp("commands") / "project"
    shutil.copytree(answered_project, folder)
    (folder / "photos" / "broken.png").write_bytes(b"hello")
    (folder / "photos" / "phone.heic").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0")
    (folder / "photos" / "notes.txt").write_text("notes")
    (folder / "empty").mkdir()
    return folder


def run(project, *arguments):
    with contextlib.chdir(project):
        return CliRunner().invoke(app, list(arguments))


def fail(project, *arguments):
    """Returns the one line by which a command refuses its input."""
    done = run(project, *arguments)
    assert isinstance(done.exception, ValueError), done.output
    assert "\n" not in str(done.exception)
    return str(done.exception)


def test_a_folder_is_indexed_brought_up_to_date_and_searched(project):
    assert "has no index yet" in fail(project, "search", "flowers", "photos/flower-01/1.jpg")
    assert "has no index yet" in fail(project, "serve", "flowers")
    first = run(project, "index", "flowers", "photos").output
    assert "128 images of" in first
    assert "128 new, 0 changed, 0 removed, 0 as before" in first
    assert "searched exactly" in first
    assert "2 files cannot be read:" in first
    assert "phone.heic is a HEIC image" in first
    assert "are ignored: .txt (1)" in first
    (project / "photos" / "flower-00" / "0.jpg").unlink()
    again = run(project, "index", "flowers", "photos", "--exact-below", "100").output
    assert "0 new, 0 changed, 1 removed, 127 as before" in again
    assert re.search(r"graph \(HNSW\), which finds \d+\.\d % of the true nearest 10", again)
    found = run(project, "search", "flowers", "photos/flower-01/1.jpg", "--top", "3").output
    assert re.findall(r"^ +(\d)  similarity", found, re.MULTILINE) == ["1", "2", "3"]
    assert "1  similarity 1.000  flower-01/1.jpg" in found
    assert (project / "results/flowers/search/page.html").is_file()


def test_mistakes_are_one_line(project):
    assert "empty has no image files" in fail(project, "index", "flowers", "empty")
    assert "nowhere does not exist" in fail(project, "index", "flowers", "nowhere")
    assert "Did you mean 'anchor'?" in fail(project, "index", "flowers", "photos", "--arm", "ancor")
    run(project, "index", "flowers", "photos")
    refused = fail(project, "search", "flowers", "photos/notes.txt")
    assert "photos/notes.txt is not an image of a known format" in refused
    assert "phone.heic is a HEIC image" in fail(project, "search", "flowers", "photos/phone.heic")
    refused = fail(project, "index", "flowers", "photos", "--arm", "anchor", "--seed", "0")
    assert refused.endswith("photos --arm anchor --seed 0 --rebuild")
