"""Omniglot is read from its official layout."""

import shutil
from pathlib import Path

import pytest

from dml_core.config.data import OmniglotData
from dml_core.data.records import DatasetError
from dml_core.data.sources.official import OfficialCounts
from dml_core.data.sources.published import OMNIGLOT_COUNTS, list_omniglot
from tests.references.official_layouts import write_omniglot


def test_a_class_is_a_character_of_an_alphabet(tmp_path: Path):
    counts = write_omniglot(tmp_path / "omniglot", train_classes=2, test_classes=1)
    listing = list_omniglot(OmniglotData(raw=str(tmp_path)), counts=counts)
    assert {record.class_name: record.role for record in listing.records} == {
        "Greek/character01": "train",
        "Greek/character02": "train",
        "Tengwar/character01": "test",
    }
    assert listing.records[0].path == "images_background/Greek/character01/0001_01.png"


def test_the_two_zips_are_read_as_downloaded(tmp_path: Path):
    counts = write_omniglot(tmp_path / "original")
    raw = tmp_path / "raw"
    raw.mkdir()
    for name in ("images_background", "images_evaluation"):
        shutil.make_archive(str(raw / name), "zip", tmp_path / "original", name)
    listing = list_omniglot(OmniglotData(raw=str(raw)), counts=counts)
    assert len(listing.records) == 10
    assert listing.root == raw.resolve()
    assert all(record.file.is_file() for record in listing.records)
    named = OmniglotData(raw=str(raw / "images_background.zip"))
    assert list_omniglot(named, counts=counts) == listing


def test_one_zip_with_both_parts_is_read(tmp_path: Path):
    counts = write_omniglot(tmp_path / "original" / "omniglot")
    archive = shutil.make_archive(str(tmp_path / "omniglot"), "zip", tmp_path / "original")
    assert len(list_omniglot(OmniglotData(raw=archive), counts=counts).records) == 10


def test_the_official_counts_are_twenty_drawings_of_each_character():
    assert (
        OfficialCounts(
            train_classes=964, train_images=964 * 20, test_classes=659, test_images=659 * 20
        )
        == OMNIGLOT_COUNTS
    )


def test_a_character_that_lacks_a_drawing_is_named(tmp_path: Path):
    counts = write_omniglot(tmp_path)
    (tmp_path / "images_evaluation/Tengwar/character02/0002_01.png").unlink()
    with pytest.raises(
        DatasetError, match="images_evaluation/Tengwar/character02 must have 2 drawings, found 1"
    ) as caught:
        list_omniglot(OmniglotData(raw=str(tmp_path)), counts=counts)
    assert "test images must be 4, found 3." in str(caught.value)


def test_a_missing_part_is_named(tmp_path: Path):
    counts = write_omniglot(tmp_path)
    shutil.rmtree(tmp_path / "images_evaluation")
    with pytest.raises(DatasetError, match="images_evaluation cannot be found"):
        list_omniglot(OmniglotData(raw=str(tmp_path)), counts=counts)
