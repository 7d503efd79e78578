"""The split column is read, and splits that cannot be evaluated are told."""

from pathlib import Path

import pytest

from dml_core.config.data import FolderData
from dml_core.data.sources.tables import read_roles, read_table, role_problems


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
def test_a_split_that_cannot_be_evaluated_is_told(tmp_path: Path, words: list[str], message: str):
    (problem,) = _problems(tmp_path, words)
    assert message in problem


def test_a_class_on_both_sides_is_told(tmp_path: Path):
    (problem,) = _problems(tmp_path, ["train", "train", "test"], ["cat", "dog", "cat"])
    assert problem.startswith("class 'cat' must be in train or in the test")
