"""Tests of preparing a dataset with images that cannot be used."""

import os
from dataclasses import replace

import pytest

from dml_core.data.prepare import prepare_dataset
from dml_core.data.prepared import open_development
from dml_core.data.records import DatasetError
from tests.references.drawn_datasets import tree_config, write_tree


def test_bad_images_are_refused_and_listed(tmp_path):
    listing = write_tree(tmp_path / "raw")
    listing.records[0].file.write_bytes(b"")
    listing.records[4].file.unlink()
    config = tree_config(tmp_path, max_refused_fraction=0.2)
    info = prepare_dataset(listing, config, workers=1)
    assert info.num_refused == 2
    assert info.num_development_images == 7
    assert (config.prepared_path / "refused.csv").read_text().splitlines() == [
        '"path","reason"',
        '"c00/0.png","is empty (zero bytes)"',
        '"c01/1.png","does not exist"',
    ]
    assert "c00/0.png" not in open_development(config).train.paths


def test_a_later_preparation_that_allows_fewer_bad_images_stops(tmp_path):
    listing = write_tree(tmp_path / "raw")
    listing.records[0].file.write_bytes(b"")
    prepare_dataset(listing, tree_config(tmp_path, max_refused_fraction=0.2), workers=1)
    with pytest.raises(DatasetError, match=r"1 of 18 images"):
        prepare_dataset(listing, tree_config(tmp_path, max_refused_fraction=0.01), workers=1)
    strict = tree_config(tmp_path, max_refused_fraction=0.2, on_bad_image="fail")
    with pytest.raises(DatasetError, match=r"image 'c00/0\.png' is empty"):
        prepare_dataset(listing, strict, workers=1)
    assert os.listdir(tmp_path / "prepared") == ["tiny"]


def test_a_failed_preparation_leaves_nothing(tmp_path):
    listing = write_tree(tmp_path / "raw")
    listing.records[-1].file.write_bytes(b"")
    with pytest.raises(DatasetError, match=r"c05/2\.png"):
        prepare_dataset(listing, tree_config(tmp_path, on_bad_image="fail"), workers=1)
    assert os.listdir(tmp_path / "prepared") == []


def test_a_bad_image_stops_also_with_two_workers(tmp_path):
    listing = write_tree(tmp_path / "raw", num_classes=50, num_images=3)
    listing.records[100].file.write_bytes(b"")
    with pytest.raises(DatasetError, match=r"c33/1\.png"):
        prepare_dataset(listing, tree_config(tmp_path, on_bad_image="fail"), workers=2)
    assert os.listdir(tmp_path / "prepared") == []


def test_a_class_that_lost_all_images_leaves_the_split_and_moves_no_other(tmp_path):
    listing = write_tree(tmp_path / "raw", num_classes=12)
    whole = prepare_dataset(listing, tree_config(tmp_path / "1"), workers=1)
    validation = open_development(tree_config(tmp_path / "1")).validation.class_names
    for record in listing.records:
        if record.class_name == "c11":
            record.file.unlink()
    config = tree_config(tmp_path / "2", max_refused_fraction=0.2)
    info = prepare_dataset(listing, config, workers=1)
    assert info.num_test_classes == whole.num_test_classes - 1
    assert open_development(config).validation.class_names == validation
    assert prepare_dataset(listing, config, workers=1) == info


def test_too_few_classes_left_are_refused(tmp_path):
    listing = write_tree(tmp_path / "raw")
    for record in listing.records[:3]:
        record.file.unlink()
    config = tree_config(tmp_path, max_refused_fraction=0.5)
    with pytest.raises(DatasetError, match="too few classes: 2 for training and validation"):
        prepare_dataset(listing, config, workers=1)


def test_classes_with_a_single_image_are_reported(tmp_path):
    listing = write_tree(tmp_path / "raw")
    kept = [r for r in listing.records if r.class_name != "c04" or r.path.endswith("0.png")]
    info = prepare_dataset(replace(listing, records=kept), tree_config(tmp_path), workers=1)
    assert info.single_image_classes == ("c04",)


def test_files_that_leave_the_root_are_refused(tmp_path):
    listing = write_tree(tmp_path / "raw")
    outside = tmp_path / "outside.png"
    outside.write_bytes(listing.records[0].file.read_bytes())
    listing.records[0].file.unlink()
    listing.records[0].file.symlink_to(outside)
    config = tree_config(tmp_path, max_refused_fraction=0.1)
    prepare_dataset(listing, config, workers=1)
    assert "leaves the dataset's folder" in (config.prepared_path / "refused.csv").read_text()
