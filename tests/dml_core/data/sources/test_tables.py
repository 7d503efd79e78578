"""Tests of users' tables."""

import math
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dml_core.config.data import FolderData
from dml_core.data.records import DatasetError, SourceListing
from dml_core.data.sources.folder import list_folder
from dml_core.data.sources.tables import read_roles, read_table, role_problems


def _csv(tmp_path: Path, text: str, *, encoding: str = "utf-8") -> Path:
    (tmp_path / "table.csv").write_bytes(text.encode(encoding))
    return tmp_path / "table.csv"


def test_words_that_look_like_numbers_or_gaps_stay_text(tmp_path: Path):
    table = read_table(_csv(tmp_path, "path,class\na,007\nb,NA\nc,nan\nd,1e5\ne,\n"))
    assert table.text("class") == ["007", "NA", "nan", "1e5", ""]


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    names=st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12),
        min_size=1,
        max_size=6,
    )
)
def test_any_text_survives_a_csv(tmp_path: Path, names: list[str]):
    lines = ["path,class"] + [
        f'{i},"{name.replace(chr(34), chr(34) * 2)}"' for i, name in enumerate(names)
    ]
    table = read_table(_csv(tmp_path, "\n".join(lines) + "\n"))
    assert table.text("class") == names


def test_row_numbers_are_those_of_the_file(tmp_path: Path):
    table = read_table(_csv(tmp_path, "path,class\na,x\n\n,\nb,y\n"))
    assert table.row_numbers() == [2, 5]
    assert table.text("path") == ["a", "b"]


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path: Path):
    table = read_table(_csv(tmp_path, "path,class\na,x\n", encoding="utf-8-sig"))
    assert list(table.frame.columns) == ["path", "class"]


def test_numbers_are_read_and_the_rest_is_nan(tmp_path: Path):
    table = read_table(_csv(tmp_path, 'age\n1\n-2.5\n1e-4\n inf\n""\nold\n"1,5"\nTrue\n1_000\n'))
    numbers = table.numbers("age")
    assert numbers[:4] == [1.0, -2.5, 1e-4, math.inf]
    assert all(math.isnan(number) for number in numbers[4:])


def test_parquet_keeps_types_and_counts_rows_from_one(tmp_path: Path):
    frame = pd.DataFrame(
        {"path": ["a", None], "class": [7, 8], "age": [0.5, None], "flag": [True, False]},
        index=[10, 20],
    )
    frame.to_parquet(tmp_path / "table.parquet")
    table = read_table(tmp_path / "table.parquet")
    assert table.row_numbers() == [1, 2]
    assert table.text("path") == ["a", ""]
    assert table.text("class") == ["7", "8"]
    assert table.numbers("age")[0] == 0.5
    assert math.isnan(table.numbers("age")[1])
    assert all(math.isnan(number) for number in table.numbers("flag"))


def test_columns_without_a_name_are_left_out(tmp_path: Path):
    table = read_table(_csv(tmp_path, ",path,class,,\n0,a,x,,\n1,b,y,,\n"))
    assert list(table.frame.columns) == ["path", "class"]


def test_a_named_parquet_index_is_a_column_and_names_are_text(tmp_path: Path):
    frame = pd.DataFrame({5: [1, 2]}, index=pd.Index(["a.jpg", "b.jpg"], name="path"))
    frame.columns = frame.columns.astype(str)
    frame.to_parquet(tmp_path / "table.parquet")
    table = read_table(tmp_path / "table.parquet")
    assert table.text("path") == ["a.jpg", "b.jpg"]
    assert table.numbers("5") == [1.0, 2.0]


def test_cells_that_hold_lists_are_no_numbers(tmp_path: Path):
    frame = pd.DataFrame({"box": [[1.0], [2.0]], "huge": ["1e999", "-7"]})
    frame.to_parquet(tmp_path / "table.parquet")
    table = read_table(tmp_path / "table.parquet")
    assert all(math.isnan(number) for number in table.numbers("box"))
    assert table.text("box")[0] == "[1.]"
    assert table.numbers("huge") == [math.inf, -7.0]


def test_dates_are_no_numbers(tmp_path: Path):
    frame = pd.DataFrame({"day": pd.to_datetime(["2020-01-01", "2020-01-02"])})
    frame.to_parquet(tmp_path / "table.parquet")
    assert all(math.isnan(day) for day in read_table(tmp_path / "table.parquet").numbers("day"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must have a header row"),
        ("path,class\na,b,c\n", "as many fields in each row.*line 2"),
        ("path,class,class\na,b,c\n", "Found twice: class"),
    ],
)
def test_a_malformed_csv_is_refused(tmp_path: Path, text: str, message: str):
    with pytest.raises(DatasetError, match=message):
        read_table(_csv(tmp_path, text))


def test_another_encoding_is_refused_with_what_to_do(tmp_path: Path):
    with pytest.raises(DatasetError, match="Save it as CSV with encoding UTF-8"):
        read_table(_csv(tmp_path, "path,class\na,café\n", encoding="latin-1"))


def test_a_file_that_is_no_parquet_is_refused(tmp_path: Path):
    (tmp_path / "table.parquet").write_text("path,class\n")
    with pytest.raises(DatasetError, match="must be a Parquet file"):
        read_table(tmp_path / "table.parquet")


def test_another_suffix_is_refused(tmp_path: Path):
    with pytest.raises(DatasetError, match=r"must end in \.csv or \.parquet. Got 'table\.xlsx'"):
        read_table(tmp_path / "table.xlsx")


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
    assert f"row 3, column 'class': must be a class. Got '{word}'. This is how a missing" in message


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


def test_a_column_with_gaps_is_not_a_label_unless_it_is_configured(tmp_path: Path):
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
        "data.path_column names the column 'path', which does not exist. Did you mean 'paths'?"
        in (message)
    )
    assert "data.class_column names the column 'class', which does not exist." in message
    assert "data.continuous_labels names the column 'age'" in message
    assert "its columns are 'paths', 'label'." in message


def test_semicolons_are_explained(tmp_path: Path):
    message = _message(tmp_path, "path;class\na.jpg;x\n")
    assert "must be separated by commas" in message


def test_a_table_without_rows_is_refused(tmp_path: Path):
    assert "at least one row below its header, found none" in _message(tmp_path, "path,class\n")


def _problems(tmp_path: Path, words: list[str], classes: list[str] | None = None) -> list[str]:
    file = tmp_path / "table.csv"
    file.write_text("part\n" + "".join(f'"{word}"\n' for word in words))
    config = FolderData(split_column="part")
    names = classes or [str(index) for index in range(len(words))]
    return role_problems(config, read_table(file), read_roles(words), names)


def test_words_are_read_whatever_their_case_and_spaces():
    assert read_roles(["Train", " TEST ", "query", "gallery"]) == [
        "train",
        "test",
        "query",
        "gallery",
    ]
    assert read_roles(["", "training", "undecided"]) == [None, None, None]


@pytest.mark.parametrize("words", [["train", "test"], ["train", "query", "gallery"]])
def test_a_whole_split_has_no_problems(tmp_path: Path, words: list[str]):
    assert _problems(tmp_path, words) == []


def test_an_unknown_word_is_named_with_its_row_and_the_nearest_word(tmp_path: Path):
    assert _problems(tmp_path, ["train", "tset"]) == [
        "row 3, column 'part': must be one of train, test, query, gallery. Got 'tset'. "
        "Did you mean 'test'?"
    ]


def test_validation_is_explained(tmp_path: Path):
    (problem,) = _problems(tmp_path, ["train", "val", "test"])
    assert problem.endswith("Validation classes are taken from train by data.validation_fraction.")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["test", "test"], "must have rows with train. Found test."),
        (["train"], "must have rows with test, or query and gallery. Found train."),
        (["train", "query"], "must have rows with test, or query and gallery. Found query, train"),
        (["train", "test", "gallery"], "must have test, or query and gallery. Found gallery, te"),
    ],
)
def test_a_split_that_cannot_be_evaluated_is_reported(
    tmp_path: Path, words: list[str], message: str
):
    (problem,) = _problems(tmp_path, words)
    assert message in problem


def test_a_class_on_both_sides_is_reported(tmp_path: Path):
    (problem,) = _problems(tmp_path, ["train", "train", "test"], ["cat", "dog", "cat"])
    assert problem.startswith("class 'cat' must be in train or in test")
