"""Tests of the description and the hashes of a prepared dataset."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from dml_core.config.data import Cub200Data, FolderData, GlyphsData
from dml_core.data.image_decoding import PackingChoices
from dml_core.data.prepared_info import (
    PreparedInfo,
    check_file_sizes,
    check_values_match,
    compute_content_hash,
    compute_source_hash,
    describe_files,
    effective_values,
    hash_file,
    load_info,
    verify_files,
)
from dml_core.data.records import DatasetError, ImageRecord


def make_info(folder, config=None):
    (folder / "part").mkdir()
    (folder / "part" / "x.bin").write_bytes(b"12345")
    config = config or FolderData()
    info = PreparedInfo(
        format_version=1,
        name="tiny",
        channels=3,
        content_hash="c",
        source_hash="s",
        split_hash="p",
        num_development_images=4,
        num_development_classes=2,
        num_test_images=3,
        num_test_classes=1,
        num_refused=0,
        single_image_classes=("ü",),
        continuous_columns=("angle",),
        values=effective_values(config, has_undecided=True),
        files=describe_files(folder, {"part/x.bin": ""}),
    )
    info.save(folder)
    return info


def test_what_is_saved_is_loaded(tmp_path):
    assert make_info(tmp_path) == load_info(tmp_path)


def test_a_file_in_place_of_the_folder_is_not_a_dataset(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DatasetError, match=r"'file' is not prepared at .*Run: dml prepare"):
        load_info(tmp_path / "file")


@pytest.mark.parametrize("text", ["", "{", "\udcff"])
def test_a_broken_description_is_damaged(tmp_path, text):
    (tmp_path / "dataset.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(DatasetError, match=r"dataset\.json is damaged"):
        load_info(tmp_path)


@pytest.mark.parametrize("change", [{"format_version": 99}, {"format_version": None}])
def test_another_format_version_is_refused_with_both(tmp_path, change):
    make_info(tmp_path)
    file = tmp_path / "dataset.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    found = change["format_version"]
    with pytest.raises(DatasetError, match=f"must have format_version 1, .*Got {found}"):
        load_info(tmp_path)


def test_a_list_instead_of_a_description_is_refused(tmp_path):
    (tmp_path / "dataset.json").write_text("[]")
    with pytest.raises(DatasetError, match="Got None"):
        load_info(tmp_path)


def test_missing_entries_are_named(tmp_path):
    make_info(tmp_path)
    file = tmp_path / "dataset.json"
    values = json.loads(file.read_text())
    del values["channels"]
    file.write_text(json.dumps(values))
    with pytest.raises(DatasetError, match="missing or unknown entries channels"):
        load_info(tmp_path)


def test_every_knob_of_a_generator_has_an_effect():
    values = effective_values(GlyphsData(), has_undecided=True)
    assert {"draw_seed", "noise", "images_per_class", "test_fraction", "name"} <= set(values)
    assert not {"prepared_root", "fold", "quantize_bins"} & set(values)


def test_an_official_split_makes_the_test_fraction_idle():
    values = effective_values(Cub200Data(), has_undecided=False)
    assert not {"test_fraction", "test_selection", "raw"} & set(values)
    assert "validation_fraction" in values


def test_several_folds_make_the_validation_fraction_idle(tmp_path):
    config = FolderData(folds=4)
    info = make_info(tmp_path, config)
    check_values_match(info, FolderData(folds=4, validation_fraction=0.4), tmp_path)
    with pytest.raises(DatasetError, match=r"data\.folds was 4, and is 1 now"):
        check_values_match(info, FolderData(), tmp_path)


def test_another_dataset_in_the_folder_is_reported(tmp_path):
    info = make_info(tmp_path)
    with pytest.raises(DatasetError, match=r"data\.name was 'folder', and is 'glyphs' now"):
        check_values_match(info, GlyphsData(), tmp_path)


def test_sizes_and_hashes_are_checked_file_by_file(tmp_path):
    info, file = make_info(tmp_path), tmp_path / "part" / "x.bin"
    verify_files(tmp_path)
    file.write_bytes(b"12354")
    check_file_sizes(info, tmp_path, info.files)
    with pytest.raises(DatasetError, match=r"part/x\.bin is damaged"):
        verify_files(tmp_path)
    file.write_bytes(b"1234")
    with pytest.raises(DatasetError, match=r"part/x\.bin has 4 bytes instead of 5"):
        verify_files(tmp_path)
    file.unlink()
    with pytest.raises(DatasetError, match=r"part/x\.bin is missing"):
        verify_files(tmp_path)


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
