"""A user's table is read, and everything wrong with it is told at once."""

from pathlib import Path

import pandas as pd
import pytest

from dml_core.config.data import FolderData
from dml_core.data.records import DatasetError, SourceListing
from dml_core.data.sources.folder import list_folder

IMAGES = ("a.jpg", "b.jpg", "sub/c.jpg", "sub/d.jpg")


def _list(tmp_path: Path, text: str, **knobs: object) -> SourceListing:
    for name in IMAGES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "table.csv").write_text(text, encoding="utf-8")
    return list_folder(FolderData(raw=str(tmp_path), table="table.csv", **knobs))


def _message(tmp_path: Path, text: str, **knobs: object) -> str:
    with pytest.raises(DatasetError) as caught:
        _list(tmp_path, text, **knobs)
    return str(caught.value)


def test_rows_become_records_with_text_classes_and_numbers(tmp_path: Path):
    listing = _list(tmp_path, "path,class,age,note\nsub/c.jpg,007,2,x\na.jpg,010,1.5,y\n")
    assert [(r.path, r.class_name, r.role, r.continuous) for r in listing.records] == [
        ("a.jpg", "010", "undecided", {"age": 1.5}),
        ("sub/c.jpg", "007", "undecided", {"age": 2.0}),
    ]
    assert listing.root == tmp_path.resolve()
    assert all(record.file.is_file() for record in listing.records)


def test_parquet_gives_the_same_as_csv(tmp_path: Path):
    text = "path,class,age\na.jpg,x,1\nb.jpg,y,2\n"
    from_csv = _list(tmp_path, text)
    pd.read_csv(tmp_path / "table.csv").to_parquet(tmp_path / "table.parquet")
    config = FolderData(raw=str(tmp_path), table="table.parquet")
    assert list_folder(config) == from_csv


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "=1+1", "猫", "a'b", "NA"])
def test_any_class_name_is_kept_as_it_is(tmp_path: Path, name: str):
    listing = _list(tmp_path, f"path,class\na.jpg,{name}\n")
    assert [record.class_name for record in listing.records] == [name]


@pytest.mark.parametrize("word", ["nan", "NaN", "<NA>", "NaT", " nan "])
def test_a_class_that_is_a_missing_value_as_text_is_refused_with_its_row(tmp_path: Path, word: str):
    message = _message(tmp_path, f"path,class\na.jpg,x\nb.jpg,{word}\n")
    assert f"{tmp_path.resolve() / 'table.csv'}" in message
    assert (
        f"row 3, column 'class': must be a class. Got '{word}'. This is what a missing" in message
    )


@pytest.mark.parametrize("missing", [None, float("nan"), pd.NaT, "nan"])
def test_a_class_or_label_that_is_missing_in_parquet_is_refused_with_its_row(
    tmp_path: Path, missing: object
):
    _list(tmp_path, "path,class\na.jpg,x\n")
    label = None if isinstance(missing, str) else missing
    rows = {
        "path": list(IMAGES),
        "class": ["x", "y", missing, "y"],
        "age": [1.0, label, 3.0, 4.0],
    }
    pd.DataFrame(rows).to_parquet(tmp_path / "table.parquet")
    config = FolderData(raw=str(tmp_path), table="table.parquet", continuous_labels=("age",))
    with pytest.raises(DatasetError) as caught:
        list_folder(config)
    message = str(caught.value)
    shown = missing if isinstance(missing, str) else ""
    assert f"{tmp_path.resolve() / 'table.parquet'}" in message
    assert f"row 3, column 'class': must be a class. Got '{shown}'." in message
    assert "row 2, column 'age': must be a finite number. Got ''." in message


def test_without_a_class_column_each_image_is_its_own_class(tmp_path: Path):
    listing = _list(
        tmp_path, "path,age\na.jpg,1\nb.jpg,2\n", class_column="", continuous_labels=("age",)
    )
    assert [record.class_name for record in listing.records] == ["a.jpg", "b.jpg"]


def test_a_numeric_class_column_may_also_be_a_label(tmp_path: Path):
    text = "path,class,age\na.jpg,3,1\nb.jpg,4,2\n"
    assert _list(tmp_path, text).records[0].continuous == {"age": 1.0}
    named = _list(tmp_path, text, continuous_labels=("class",))
    assert named.records[1].continuous == {"class": 4.0, "age": 2.0}


def test_a_column_with_gaps_is_no_label_unless_it_is_asked_for(tmp_path: Path):
    text = "path,class,age\na.jpg,x,1\nb.jpg,y,\n"
    assert _list(tmp_path, text).records[0].continuous == {}
    message = _message(tmp_path, text, continuous_labels=("age",))
    assert "row 3, column 'age': must be a finite number. Got ''." in message


@pytest.mark.parametrize("value", ["inf", "nan", "old", '"1,5"'])
def test_a_label_that_is_no_finite_number_is_named(tmp_path: Path, value: str):
    text = f"path,class,age\na.jpg,x,1\nb.jpg,y,{value}\n"
    message = _message(tmp_path, text, continuous_labels=("age",))
    shown = value.strip('"')
    assert f"row 3, column 'age': must be a finite number. Got '{shown}'." in message


def test_many_bad_numbers_are_counted_and_ten_are_shown(tmp_path: Path):
    text = "path,class,age\n" + "".join(f"{n}.jpg,x,old\n" for n in range(30))
    for n in range(30):
        (tmp_path / f"{n}.jpg").touch()
    message = _message(tmp_path, text, continuous_labels=("age",))
    assert "has 30 problem(s)" in message
    assert message.count("must be a finite number") == 10
    assert "and 20 more like these (30 in all)" in message


def test_roles_come_from_the_split_column(tmp_path: Path):
    text = "path,class,part\na.jpg,x,train\nb.jpg,y,query\nsub/c.jpg,y,Gallery\n"
    listing = _list(tmp_path, text, split_column="part")
    assert [record.role for record in listing.records] == ["train", "query", "gallery"]


def test_paths_are_normalised(tmp_path: Path):
    text = (
        f"path,class\n./a.jpg,x\nsub//c.jpg,x\n{tmp_path.resolve()}/b.jpg,y\nsub/../sub/d.jpg,y\n"
    )
    listing = _list(tmp_path, text)
    assert [record.path for record in listing.records] == list(IMAGES)


@pytest.mark.parametrize("path", ["../x.jpg", "sub/../../x.jpg", "/etc/hostname"])
def test_a_path_that_leaves_the_folder_is_refused(tmp_path: Path, path: str):
    message = _message(tmp_path, f"path,class\na.jpg,x\n{path},x\n")
    assert f"row 3, column 'path': '{path}' leaves the folder of the table." in message


def test_all_problems_are_gathered(tmp_path: Path):
    text = (
        "path,class,age,part\n"
        "a.jpg,x,1,train\n"
        "./a.jpg,x,1,train\n"
        "gone.jpg,y,1,test\n"
        "../b.jpg,y,1,test\n"
        ",y,1,test\n"
        "b.jpg,,old,holdout\n"
    )
    message = _message(tmp_path, text, split_column="part", continuous_labels=("age",))
    assert message.splitlines() == [
        f"{tmp_path}/table.csv has 7 problem(s):",
        "  - row 3, column 'path': 'a.jpg' is also in row 2.",
        "  - row 5, column 'path': '../b.jpg' leaves the folder of the table.",
        "  - row 6, column 'path': must be a path. Got ''.",
        "  - row 4, column 'path': there is no file 'gone.jpg' beside the table.",
        "  - row 7, column 'class': must be a class. Got ''.",
        "  - row 7, column 'age': must be a finite number. Got 'old'.",
        "  - row 7, column 'part': must be one of train, test, query, gallery. Got 'holdout'.",
    ]


def test_backslashes_are_explained(tmp_path: Path):
    message = _message(tmp_path, "path,class\nsub\\c.jpg,x\n")
    assert "Write paths with / instead of \\." in message


def test_missing_columns_are_named_with_the_nearest(tmp_path: Path):
    message = _message(tmp_path, "paths,label\na.jpg,x\n", continuous_labels=("age",))
    assert (
        "data.path_column names the column 'path', which is not there. Did you mean 'paths'?"
        in (message)
    )
    assert "data.class_column names the column 'class', which is not there." in message
    assert "data.continuous_labels names the column 'age'" in message
    assert "its columns are 'paths', 'label'." in message


def test_semicolons_are_explained(tmp_path: Path):
    message = _message(tmp_path, "path;class\na.jpg;x\n")
    assert "must be separated by commas" in message


def test_a_table_without_rows_is_refused(tmp_path: Path):
    assert "at least one row below its header, found none" in _message(tmp_path, "path,class\n")
