"""Each data.name has its source."""

import typing
from pathlib import Path

import pytest

from dml_core.config.data import Cub200Data, DataConfig, FolderData, GlyphsData
from dml_core.data.records import DatasetError
from dml_core.data.sources.registry import SOURCES, list_images
from tests.references.official_layouts import write_cub200, write_image


def test_every_dataset_of_the_configuration_has_a_source():
    union = typing.get_args(DataConfig)[0]
    names = {kind.model_fields["name"].default for kind in typing.get_args(union)}
    # A reader of one's own code is found by its name.
    assert set(SOURCES) == {name for name in names if not name.startswith("python:")}


def test_the_name_chooses_the_source(tmp_path: Path):
    write_image(tmp_path / "cat" / "a.png")
    (record,) = list_images(FolderData(raw=str(tmp_path))).records
    assert (record.path, record.class_name) == ("cat/a.png", "cat")


def test_official_counts_hold_through_the_registry(tmp_path: Path):
    write_cub200(tmp_path)
    with pytest.raises(DatasetError, match="train classes must be 100, found 4"):
        list_images(Cub200Data(raw=str(tmp_path)))


def test_glyphs_are_drawn_with_their_continuous_labels():
    config = GlyphsData(max_classes=3, images_per_class=2, continuous_labels=("rotation",))
    records = list_images(config).records
    assert len(records) == 6
    assert all("rotation" in record.continuous for record in records)


def test_a_continuous_label_that_the_dataset_has_not_is_named():
    config = GlyphsData(max_classes=3, images_per_class=2, continuous_labels=("rotaton",))
    with pytest.raises(DatasetError, match=r"Got 'rotaton'; it has .*Did you mean 'rotation'"):
        list_images(config)
