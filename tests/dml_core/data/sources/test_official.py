"""Tests of reading annotations and checking official counts."""

from dataclasses import replace
from pathlib import Path

import pytest

from dml_core.data.records import DatasetError, ImageRecord
from dml_core.data.sources.official import (
    OfficialCounts,
    count_problems,
    inside_path,
    official_listing,
    read_rows,
    whole_number,
)
from dml_core.data.sources.raw_search import Distribution

COUNTS = OfficialCounts(train_classes=1, train_images=2, test_classes=1, test_images=1)
LETTERS = Distribution(name="letters", title="Letters", download="letters.zip")


def _records(folder: Path) -> list[ImageRecord]:
    rows = [("b.png", "one", "train"), ("a.png", "one", "train"), ("c.png", "two", "test")]
    for path, _, _ in rows:
        (folder / path).touch()
    return [ImageRecord(p, class_name=c, role=r, file=folder / p) for p, c, r in rows]


def test_a_whole_dataset_is_listed_in_order_of_path(tmp_path: Path):
    records = _records(tmp_path)
    listing = official_listing(
        {"list.txt": records}, root=tmp_path, distribution=LETTERS, counts=COUNTS
    )
    assert [record.path for record in listing.records] == ["a.png", "b.png", "c.png"]
    assert listing.root == tmp_path


@pytest.mark.parametrize(
    ("field", "line"),
    [
        ("train_classes", "train classes must be 7,000, found 1."),
        ("train_images", "train images must be 7,000, found 2."),
        ("test_classes", "test classes must be 7,000, found 1."),
        ("test_images", "test images must be 7,000, found 1."),
        ("query_images", "query images must be 7,000, found 0."),
        ("gallery_images", "gallery images must be 7,000, found 0."),
    ],
)
def test_each_number_is_checked(tmp_path: Path, field: str, line: str):
    assert count_problems(_records(tmp_path), replace(COUNTS, **{field: 7_000})) == [line]


def test_a_class_on_both_sides_is_reported(tmp_path: Path):
    records = [replace(record, class_name="one") for record in _records(tmp_path)]
    assert count_problems(records, COUNTS) == [
        "train and test must share no class, found 1, such as one."
    ]


def test_a_repeated_image_is_reported_and_counts_once(tmp_path: Path):
    records = _records(tmp_path)
    with pytest.raises(DatasetError, match=r"has 1 problem\(s\):\n  - a.png is listed twice"):
        official_listing(
            {"list.txt": [*records, records[1]]},
            root=tmp_path,
            distribution=LETTERS,
            counts=COUNTS,
        )


def test_what_the_source_found_is_reported_too(tmp_path: Path):
    with pytest.raises(DatasetError, match=r"dataset 'letters' at .*\n  - odd thing") as caught:
        official_listing(
            {"list.txt": _records(tmp_path)},
            root=tmp_path,
            distribution=LETTERS,
            counts=COUNTS,
            other_problems=["odd thing."],
        )
    assert "Download letters.zip" in str(caught.value)


def test_fields_are_split_and_the_last_may_hold_spaces(tmp_path: Path):
    (tmp_path / "list.txt").write_text("header\n1  a b.jpg \n\n2 c.jpg\r\n")
    rows = list(read_rows(tmp_path / "list.txt", columns="image_id path", skip_lines=1))
    assert rows == [(2, ["1", "a b.jpg"]), (4, ["2", "c.jpg"])]


def test_a_line_with_too_few_fields_is_named(tmp_path: Path):
    (tmp_path / "list.txt").write_text("1 a.jpg\n2\n")
    with pytest.raises(DatasetError, match=r"list\.txt line 2 must have .*Got '2'"):
        list(read_rows(tmp_path / "list.txt", columns="image_id path"))


def test_bytes_that_are_no_text_are_refused(tmp_path: Path):
    (tmp_path / "list.txt").write_bytes(b"1 caf\xe9.jpg\n")
    with pytest.raises(DatasetError, match=r"must be UTF-8 text.*position 5"):
        list(read_rows(tmp_path / "list.txt", columns="image_id path"))


def test_a_folder_in_place_of_the_file_is_refused(tmp_path: Path):
    with pytest.raises(DatasetError, match="cannot be read: Is a directory"):
        list(read_rows(tmp_path, columns="image_id path"))


@pytest.mark.parametrize("text", ["", "-1", "1.0", "one", "²", "١"])
def test_only_plain_digits_are_whole_numbers(text: str):
    with pytest.raises(DatasetError, match=r"list\.txt line 7"):
        whole_number(text, Path("list.txt"), 7)
    assert whole_number("007", Path("list.txt"), 7) == 7


@pytest.mark.parametrize("text", ["/etc/passwd", "../secret.jpg", "a/../../b.jpg"])
def test_paths_that_leave_the_folder_are_refused(text: str):
    with pytest.raises(DatasetError, match="inside the dataset's folder"):
        inside_path(text, Path("list.txt"), 3)


def test_a_path_below_the_folder_is_kept():
    assert str(inside_path("a/b c.jpg", Path("list.txt"), 3)) == "a/b c.jpg"
