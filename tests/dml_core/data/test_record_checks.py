"""Tests of the checks of a source's records."""

import pytest

from dml_core.data.prepare import sort_and_check
from dml_core.data.records import DatasetError, ImageRecord


def record(path, **continuous):
    return ImageRecord(path, "class", "train", continuous=continuous)


def test_records_are_sorted_by_path():
    ordered = sort_and_check([record("b"), record("ä"), record("B"), record("a")], dataset="tiny")
    assert [each.path for each in ordered] == ["B", "a", "b", "ä"]


def test_a_dataset_without_images_is_refused():
    with pytest.raises(DatasetError, match=r"'tiny' must have images. Found none"):
        sort_and_check([], dataset="tiny")


def test_a_path_that_stands_twice_is_refused():
    with pytest.raises(DatasetError, match="Listed more often: 1, first 'a'"):
        sort_and_check([record("a"), record("b"), record("a")], dataset="tiny")


def test_other_continuous_labels_than_the_rest_are_refused():
    with pytest.raises(DatasetError, match=r"'b' must have .*\['x'\].*Got \['y'\]"):
        sort_and_check([record("a", x=1.0), record("b", y=1.0)], dataset="tiny")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_labels_that_are_not_finite_are_refused(value):
    with pytest.raises(DatasetError, match=f"'a' must have a finite 'x'.*Got {value}"):
        sort_and_check([record("a", x=value)], dataset="tiny")
