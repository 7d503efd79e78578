"""Lines of annotations are read, and the wrong one is named."""

from pathlib import Path

import pytest

from dml_core.data.records import DatasetError
from dml_core.data.sources.official import inside_path, read_rows, whole_number


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
