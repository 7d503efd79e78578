"""Tests of the hashes over a dataset's content."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from dml_core.data.packing import PackingChoices
from dml_core.data.prepared_info import compute_content_hash, compute_source_hash, hash_file
from dml_core.data.records import ImageRecord

CHOICES = PackingChoices(16, "shorter", "rgb")
RECORD = ImageRecord("a/1", "a", "train", file=Path("/here/a/1"), continuous={"x": 0.1, "y": 2.0})


def hash_one(record=RECORD, digest="d1", choices=CHOICES):
    return compute_source_hash([record], [digest], choices)


def test_where_the_file_lies_and_the_order_of_columns_do_not_matter():
    moved = replace(RECORD, file=Path("/elsewhere/1"), continuous={"y": 2.0, "x": 0.1})
    assert hash_one(moved) == hash_one()


@pytest.mark.parametrize(
    "change",
    [
        {"path": "a/2"},
        {"class_name": "b"},
        {"role": "test"},
        {"continuous": {"x": 0.1 + 2**-56, "y": 2.0}},
        {"continuous": {"x": 0.1}},
    ],
)
def test_everything_said_of_an_image_matters(change):
    assert hash_one(replace(RECORD, **change)) != hash_one()


@pytest.mark.parametrize(
    "choices",
    [
        PackingChoices(17, "shorter", "rgb"),
        PackingChoices(16, "square", "rgb"),
        PackingChoices(16, "shorter", "gray"),
    ],
)
def test_the_packing_and_the_bytes_matter(choices):
    assert hash_one(choices=choices) != hash_one()
    assert hash_one(digest="d2") != hash_one()


def test_names_cannot_be_shifted_between_fields():
    first = ImageRecord("a", "bc", "train")
    second = ImageRecord("ab", "c", "train")
    assert hash_one(first) != hash_one(second)


def test_names_that_are_not_utf8_are_hashed():
    assert hash_one(replace(RECORD, path="\udcff")) != hash_one(replace(RECORD, path="\udcfe"))


def test_refused_images_are_part_of_the_content_in_any_order():
    assert compute_content_hash("h", ["a", "b"]) == compute_content_hash("h", ["b", "a"])
    hashes = {compute_content_hash("h", refused) for refused in ([], ["a"], ["a", "b"], ["ab"])}
    assert len(hashes) == 4


def test_a_file_is_hashed_by_its_bytes(tmp_path):
    (tmp_path / "x").write_bytes(b"content")
    assert hash_file(tmp_path / "x") == hashlib.sha256(b"content").hexdigest()
