"""Tests of class splits and splits.json."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dml_core.config.data import FolderData
from dml_core.data.records import DatasetError, ImageRecord
from dml_core.data.splits import (
    ClassSplit,
    check_split_is_disjoint,
    load_split,
    save_split,
    split_classes,
)


def records_of(roles):
    return [ImageRecord(f"{name}/{role}", name, role) for name, role in roles]


def undecided(count):
    return records_of((f"c{number:03d}", "undecided") for number in range(count))


def test_the_last_classes_by_name_are_the_test_classes():
    split = split_classes(undecided(10), FolderData())
    assert split.test == ("c005", "c006", "c007", "c008", "c009")
    assert split.development == ("c000", "c001", "c002", "c003", "c004")


def test_random_test_classes_depend_on_the_split_seed_alone():
    def test_of(seed):
        config = FolderData(test_selection="random", split_seed=seed)
        return split_classes(undecided(40), config).test

    assert test_of(1) == test_of(1)
    assert test_of(1) != test_of(2)
    assert len(test_of(1)) == 20


def test_official_roles_win_over_the_test_fraction():
    roles = [("a", "test"), ("b", "train"), ("c", "train"), ("d", "train"), ("e", "test")]
    split = split_classes(records_of(roles), FolderData(test_fraction=0.9))
    assert split.test == ("a", "e")
    assert split.development == ("b", "c", "d")


def test_query_and_gallery_are_test():
    roles = [("a", "query"), ("a", "gallery"), ("b", "train"), ("c", "train"), ("d", "train")]
    assert split_classes(records_of(roles), FolderData()).test == ("a",)


@pytest.mark.parametrize(
    ("roles", "found"),
    [(["query"], "query"), (["gallery"], "gallery"), (["test", "query"], "test, query")],
)
def test_a_query_without_a_gallery_is_refused(roles, found):
    rows = [("a", role) for role in roles] + [(name, "train") for name in "bcd"]
    with pytest.raises(DatasetError, match=f"Found only: {found}"):
        split_classes(records_of(rows), FolderData())


def test_undecided_classes_are_shared_out_beside_official_ones():
    rows = [("z", "test"), ("t", "train"), *((f"u{n}", "undecided") for n in range(4))]
    split = split_classes(records_of(rows), FolderData())
    assert split.test == ("u2", "u3", "z")
    assert split.development == ("t", "u0", "u1")


def test_a_class_on_both_sides_is_refused_by_name():
    rows = [("a", "train"), ("a", "test"), ("b", "train"), ("c", "test")]
    with pytest.raises(DatasetError, match=r"share 1 class \(a\) between train and test"):
        split_classes(records_of(rows), FolderData())


def test_a_class_that_is_half_decided_is_refused():
    rows = [("a", "train"), ("a", "undecided"), ("b", "train"), ("c", "test")]
    with pytest.raises(DatasetError, match=r"\(a\) between decided and undecided roles"):
        split_classes(records_of(rows), FolderData())


def test_one_fold_holds_the_validation_fraction():
    split = split_classes(undecided(40), FolderData(validation_fraction=0.25))
    assert len(split.validation_classes(0)) == 5
    assert len(split.train_classes(0)) == 15


def test_two_training_classes_are_left_whatever_the_fraction():
    split = split_classes(undecided(6), FolderData(validation_fraction=0.99))
    assert (len(split.train_classes(0)), len(split.validation_classes(0))) == (2, 1)


def test_one_validation_class_is_taken_whatever_the_fraction():
    split = split_classes(undecided(6), FolderData(validation_fraction=0.01))
    assert len(split.validation_classes(0)) == 1


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(14, 60),
    folds=st.integers(2, 5),
    seed=st.integers(0, 2**32 - 1),
    selection=st.sampled_from(["last", "random"]),
)
def test_folds_partition_the_training_classes(count, folds, seed, selection):
    config = FolderData(folds=folds, split_seed=seed, test_selection=selection)
    split = split_classes(undecided(count), config)
    gathered = [name for fold in split.folds for name in fold]
    assert sorted(gathered) == list(split.development)
    assert len(set(gathered)) == len(gathered)
    sizes = [len(fold) for fold in split.folds]
    assert len(sizes) == folds
    assert max(sizes) - min(sizes) <= 1
    everything = sorted(split.development + split.test)
    assert everything == [f"c{number:03d}" for number in range(count)]


def test_the_order_of_the_records_does_not_matter():
    records = undecided(20)
    config = FolderData(test_selection="random", folds=3)
    assert split_classes(records, config) == split_classes(records[::-1], config)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_too_few_classes_are_refused_with_the_numbers(count):
    # Half are held back for the test: of 4 classes 2 are left, and 3 are needed.
    with pytest.raises(DatasetError, match=r"(\d) for training and validation, (\d) for the test"):
        split_classes(undecided(count), FolderData())


def test_too_few_classes_for_the_folds_are_refused():
    with pytest.raises(DatasetError, match=r"5 for training and validation, 5 .*data\.folds=6"):
        split_classes(undecided(10), FolderData(folds=6))


def test_a_dataset_without_test_classes_is_refused():
    rows = [(name, "train") for name in "abcd"]
    with pytest.raises(DatasetError, match=r"at least 1 test class.*Found 4 for training"):
        split_classes(records_of(rows), FolderData())


def test_a_dataset_without_training_classes_is_refused():
    rows = [(name, "test") for name in "abcd"]
    with pytest.raises(DatasetError, match="too few classes: 0 for training"):
        split_classes(records_of(rows), FolderData())


def test_the_check_finds_shared_classes():
    with pytest.raises(DatasetError, match=r"2 classes \(b, c\) between train and test"):
        check_split_is_disjoint(ClassSplit(("a", "b", "c"), ("b", "c", "d"), ()))
    with pytest.raises(DatasetError, match=r"\(a\) between two validation folds"):
        check_split_is_disjoint(ClassSplit(("a", "b"), ("d",), (("a",), ("a", "b"))))
    with pytest.raises(DatasetError, match=r"\(x\) in validation but not among"):
        check_split_is_disjoint(ClassSplit(("a", "b"), ("d",), (("x",),)))


def test_different_splits_have_different_hashes_and_a_hash_is_stable():
    split = ClassSplit(("a", "b"), ("c",), (("a",),))
    assert split.hash() == ClassSplit(("a", "b"), ("c",), (("a",),)).hash()
    assert split.hash() != ClassSplit(("a", "b"), ("c",), (("b",),)).hash()
    # Written down, so that a change of the canonical form cannot pass unseen.
    assert split.hash() == "e2000f642ac57b554ddf219a20814da431b7757a3a31a06b7f3fe3641e54c8f8"


def test_a_split_without_some_classes_keeps_the_others_in_place():
    split = ClassSplit(("a", "b", "c"), ("d", "e"), (("a",), ("b", "c")))
    left = split.restricted_to({"a", "c", "e"})
    assert left == ClassSplit(("a", "c"), ("e",), (("a",), ("c",)))


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
