"""Whatever stands in a table of images, listing it gives the images or a list of problems."""

import csv
import io
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml_core.config.data import FolderData
from dml_core.data.prepare import sort_and_check
from dml_core.data.records import DatasetError
from dml_core.data.sources.registry import list_images
from dml_core.data.splits import split_classes
from tests.references.fuzzed_files import check_message, damaged_bytes, fuzzed, no_hang

IMAGES = [f"images/{letter}{number}.png" for letter in "abcd" for number in range(3)]
ROWS = [["path", "class", "angle", "split"]] + [
    [path, path[7], str(place * 1.5), "train" if path[7] in "ab" else "test"]
    for place, path in enumerate(IMAGES)
]
COLUMNS = st.fixed_dictionaries(
    {},
    optional={
        "class_column": st.sampled_from(["class", "", "angle", "nowhere", "path"]),
        "path_column": st.sampled_from(["path", "class", "nowhere"]),
        "split_column": st.sampled_from(["split", "", "class"]),
        "continuous_labels": st.sampled_from([["angle"], ["class"], [], ["angle", "angle"]]),
    },
)
HOSTILE = [
    *("", " ", ",", '"', "'", "\n", "\r\n", "\0", "\ufeff", ";", "\t", "#", "\\", "\x1b[2J"),
    *("../images/a0.png", "/etc/passwd", "images", "images/", ".", "..", "~", "images//a0.png"),
    *("=1+1", "@SUM(A1)", "-1", "+1", "<script>", "nan", "inf", "-inf", "1e999", "1_000", "0x10"),
    *("NA", "null", "None", "true", "a" * 5000, "é", "\u202e", "\u2028", "TRAIN", "query", "val"),
]


def write(rows) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode("utf-8", "surrogatepass")


def read(content: bytes, columns: dict | None = None) -> None:
    """Lists what a table names; whatever is wrong must be told as a DatasetError."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "images").mkdir()
        for path in IMAGES:
            (root / path).touch()
        (root / "table.csv").write_bytes(content)
        config = FolderData(raw=folder, table="table.csv", **(columns or {}))
        with no_hang():
            try:
                listing = list_images(config)
                split_classes(sort_and_check(listing.records, dataset="fuzzed"), config)
            except DatasetError as error:
                check_message(error)
            else:
                assert all(
                    record.file.resolve().is_relative_to(root.resolve())
                    for record in listing.records
                )


def test_the_table_itself_is_sound():
    read(write(ROWS), {"split_column": "split", "continuous_labels": ["angle"]})


@fuzzed(150)
@given(
    damaged_bytes(write(ROWS), snippets=[t.encode() for t in HOSTILE] + [b"\xff", b"\xc3("]),
    COLUMNS,
)
def test_damaged_bytes(content, columns):
    read(content, columns)


@fuzzed(150)
@given(st.data(), COLUMNS)
def test_hostile_cells(data, columns):
    rows = [list(row) for row in ROWS]
    for _ in range(data.draw(st.integers(1, 5))):
        row = rows[data.draw(st.integers(0, len(rows) - 1))]
        row[data.draw(st.integers(0, len(row) - 1))] = data.draw(
            st.sampled_from(HOSTILE) | st.text(max_size=10)
        )
    read(write(rows), columns)


@fuzzed(100)
@given(st.lists(st.lists(st.text(max_size=6), max_size=5), max_size=6), COLUMNS)
def test_any_rows(rows, columns):
    read(write(rows), columns)


@fuzzed(100)
@given(st.binary(max_size=200), COLUMNS)
def test_any_bytes(content, columns):
    read(content, columns)


@pytest.mark.parametrize("text", HOSTILE)
def test_each_hostile_cell_in_each_column(text):
    for column in range(4):
        rows = [list(row) for row in ROWS]
        rows[3][column] = text
        read(write(rows), {"split_column": "split", "continuous_labels": ["angle"]})
        rows[0][column] = text
        read(write(rows))
