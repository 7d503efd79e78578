"""The classes on the page of a report."""

from PIL import Image

from dml_core.measures.class_scores import ClassScore, write_class_scores
from tasks.report_page.classes import embed_worst_classes, make_class_tables


def test_the_worst_classes_and_the_sizes_have_tables(tmp_path):
    scores = [ClassScore(f"c{size}", size, size, 1 / size, "other") for size in (1, 2, 4, 8)]
    write_class_scores(scores, tmp_path)
    worst, sizes = make_class_tables(tmp_path)
    assert worst.caption.startswith("The worst of 4 test classes")
    assert [cell.text for cell in worst.rows[0]] == ["c8", "12.5", "8", "other"]
    assert [row[0].text for row in worst.rows] == ["c8", "c4", "c2"]
    assert [[cell.text for cell in row] for row in sizes.rows][-1] == ["8", "12.5", "1"]


def test_tables_that_say_nothing_are_absent(tmp_path):
    assert make_class_tables(tmp_path) == []
    write_class_scores([ClassScore("a", 5, 5, 1.0, ""), ClassScore("b", 5, 5, 1.0, "")], tmp_path)
    assert make_class_tables(tmp_path) == []
    assert embed_worst_classes(tmp_path) == []


def test_the_picture_is_part_of_the_page(tmp_path):
    Image.new("RGB", (4, 4)).save(tmp_path / "worst_classes.png")
    (picture,) = embed_worst_classes(tmp_path)
    assert picture.source.startswith("data:image/png;base64,")
    assert "lowest R@1" in picture.caption
