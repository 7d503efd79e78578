"""Tables are read as text, and unreadable ones are named."""

import math
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dml_core.data.records import DatasetError
from dml_core.data.sources.tables import read_table


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
