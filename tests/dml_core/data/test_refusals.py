"""Tests of the account of refused images."""

import csv

import pytest

from dml_core.config.data import FolderData
from dml_core.data.records import DatasetError, ImageRecord
from dml_core.data.writing import Refusals, is_too_many


def record(path):
    return ImageRecord(path, "class", "train")


def test_the_first_bad_image_stops_a_strict_preparation():
    refusals = Refusals(FolderData(on_bad_image="fail"), total=1000)
    with pytest.raises(DatasetError, match=r"image 'a/1\.png' is empty\. .*on_bad_image=fail"):
        refusals.add(record("a/1.png"), "is empty")


def test_too_many_refused_images_stop_with_the_numbers_and_first_reasons():
    refusals = Refusals(FolderData(max_refused_fraction=0.02), total=100)
    refusals.add(record("a"), "is empty")
    refusals.add(record("b"), "is truncated")
    with pytest.raises(DatasetError, match=r"3 of 100 images \(3\.00%\)") as caught:
        refusals.add(record("c"), "does not exist")
    assert "data.max_refused_fraction=0.02" in str(caught.value)
    assert str(caught.value).endswith("\n  - a is empty\n  - b is truncated\n  - c does not exist")


@pytest.mark.parametrize(
    ("refused", "share", "expected"),
    [(0, 0.0, False), (1, 0.0, True), (1, 0.01, False), (2, 0.01, True), (100, 1.0, False)],
)
def test_the_limit_itself_is_allowed(refused, share, expected):
    config = FolderData(max_refused_fraction=share)
    assert is_too_many(refused, 100, config) is expected


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_no_cell_starts_a_formula(tmp_path, start):
    refusals = Refusals(FolderData(max_refused_fraction=1), total=2)
    refusals.add(record(f"{start}cmd()"), f"{start}reason")
    refusals.write(tmp_path / "refused.csv")
    with (tmp_path / "refused.csv").open(newline="") as stream:
        rows = list(csv.reader(stream))
    assert rows == [["path", "reason"], [f"'{start}cmd()", f"'{start}reason"]]


def test_odd_names_survive_the_table(tmp_path):
    refusals = Refusals(FolderData(max_refused_fraction=1), total=9)
    refusals.add(record('ü, "quoted"\nline'), "is empty")
    refusals.add(record("not\udcffutf8"), "is empty")
    refusals.write(tmp_path / "refused.csv")
    with (tmp_path / "refused.csv").open(newline="", encoding="utf-8") as stream:
        rows = list(csv.reader(stream))
    assert [row[0] for row in rows[1:]] == ['ü, "quoted"\nline', "not\\udcffutf8"]
    assert refusals.paths == ['ü, "quoted"\nline', "not\udcffutf8"]
