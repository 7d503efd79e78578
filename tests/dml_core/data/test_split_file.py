"""Tests of keeping a split in a file."""

import json

import pytest

from dml_core.data.records import DatasetError
from dml_core.data.splits import ClassSplit, load_split, save_split

SPLIT = ClassSplit(("a", "b", "ü"), ("x",), (("a",),))


def test_what_is_saved_is_loaded(tmp_path):
    save_split(SPLIT, tmp_path)
    assert load_split(tmp_path, split_hash=SPLIT.hash()) == SPLIT


def test_a_missing_or_broken_file_is_named(tmp_path):
    with pytest.raises(DatasetError, match=r"splits\.json is missing or damaged"):
        load_split(tmp_path, split_hash="")
    (tmp_path / "splits.json").write_text('{"development": []}')
    with pytest.raises(DatasetError, match=r"damaged \(KeyError\('test'\)\)"):
        load_split(tmp_path, split_hash="")


def test_a_changed_file_is_refused(tmp_path):
    save_split(SPLIT, tmp_path)
    with pytest.raises(DatasetError, match=f"its hash is {SPLIT.hash()}.*says other"):
        load_split(tmp_path, split_hash="other")


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (
            {"development": ["a", "b"], "test": ["b"], "folds": [["a"]]},
            r"share 1 class \(b\) between train and test",
        ),
        (
            {"development": ["a", "b", "c"], "test": ["x"], "folds": [["a", "b"], ["b", "c"]]},
            r"share 1 class \(b\) between two validation folds",
        ),
        (
            {"development": ["a", "b"], "test": ["x"], "folds": [["stranger"]]},
            r"hold 1 class \(stranger\) in validation but not among the development classes",
        ),
    ],
)
def test_a_class_with_two_uses_is_refused_by_its_name(tmp_path, values, problem):
    (tmp_path / "splits.json").write_text(json.dumps(values))
    # Refused for its own sake, even where the hash is right.
    folds = tuple(tuple(fold) for fold in values["folds"])
    split = ClassSplit(tuple(values["development"]), tuple(values["test"]), folds)
    with pytest.raises(DatasetError, match=rf"splits\.json: splits {problem}"):
        load_split(tmp_path, split_hash=split.hash())
