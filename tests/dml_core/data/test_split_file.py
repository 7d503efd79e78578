"""Tests of keeping a split in a file."""

import json

import pytest

from dml_core.data.records import DatasetError
from dml_core.data.split_file import load_split, save_split
from dml_core.data.splits import ClassSplit

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


def test_a_class_with_two_uses_is_refused(tmp_path):
    values = {"development": ["a", "b"], "test": ["b"], "folds": [["a"]]}
    (tmp_path / "splits.json").write_text(json.dumps(values))
    with pytest.raises(DatasetError, match=r"share 1 class \(b\) between train and test"):
        load_split(tmp_path, split_hash="")
