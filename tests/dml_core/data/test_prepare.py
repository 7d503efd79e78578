"""Tests of preparing a dataset."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from dml_core.data.prepare import prepare_dataset, sort_and_check
from dml_core.data.prepared import open_development, open_test
from dml_core.data.prepared_info import verify_files
from dml_core.data.records import DatasetError, ImageRecord, SourceListing
from tests.references.drawn_datasets import drawn_listing, tree_config, write_tree

# Enough images for several chunks, so that two workers have something to share.
MANY = {"num_classes": 50, "num_images": 3}


def read_all(folder):
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def test_a_prepared_folder_has_its_parts(tmp_path):
    config = tree_config(tmp_path)
    info = prepare_dataset(write_tree(tmp_path / "raw"), config, workers=1)
    assert sorted(read_all(config.prepared_path)) == [
        "dataset.json",
        "development/images.bin",
        "development/manifest.parquet",
        "duplicates.csv",
        "refused.csv",
        "splits.json",
        "test/images.bin",
        "test/manifest.parquet",
    ]
    assert (info.num_development_images, info.num_test_images) == (9, 9)
    assert (info.num_development_classes, info.num_test_classes) == (3, 3)
    assert (info.name, info.channels, info.num_refused) == ("tiny", 3, 0)
    assert os.listdir(tmp_path / "prepared") == ["tiny"]
    verify_files(config.prepared_path)


def test_a_limit_keeps_the_first_images_of_each_class(tmp_path):
    listing = write_tree(tmp_path / "raw")
    config = tree_config(tmp_path).model_copy(update={"max_images_per_class": 2})
    info = prepare_dataset(listing, config, workers=1)
    assert (info.num_development_images, info.num_test_images) == (6, 6)
    by_class = {}
    for record in sorted(listing.records, key=lambda record: record.path):
        by_class.setdefault(record.class_name, []).append(record.path)
    wanted = {path for paths in by_class.values() for path in paths[:2]}
    development = open_development(config)
    kept = [*development.train.paths, *development.validation.paths, *open_test(config)[0].paths]
    assert set(kept) == wanted


def test_one_and_two_workers_write_the_same_bytes(tmp_path):
    listing = write_tree(tmp_path / "raw", **MANY)
    alone, shared = tree_config(tmp_path / "1"), tree_config(tmp_path / "2")
    prepare_dataset(listing, alone, workers=1)
    prepare_dataset(replace(listing, records=listing.records[::-1]), shared, workers=2)
    assert read_all(alone.prepared_path) == read_all(shared.prepared_path)


def test_the_content_hash_is_equal_wherever_and_whenever_the_files_lie(tmp_path):
    first = prepare_dataset(write_tree(tmp_path / "a"), tree_config(tmp_path / "1"), workers=1)
    listing = write_tree(tmp_path / "b" / "elsewhere")
    for record in listing.records:
        os.utime(record.file, (0, 0))
    second = prepare_dataset(listing, tree_config(tmp_path / "2"), workers=1)
    assert first == second


def test_one_changed_byte_changes_the_content_hash_and_not_the_split(tmp_path):
    listing, config = write_tree(tmp_path / "raw"), tree_config(tmp_path)
    first = prepare_dataset(listing, config, workers=1)
    with listing.records[0].file.open("ab") as stream:
        stream.write(b"\0")
    second = prepare_dataset(listing, config, workers=1)
    assert first.content_hash != second.content_hash
    assert first.split_hash == second.split_hash


def modification_times(folder):
    return {file: file.stat().st_mtime_ns for file in folder.rglob("*")}


def test_a_second_preparation_leaves_everything_in_place(tmp_path):
    listing, config = write_tree(tmp_path / "raw"), tree_config(tmp_path)
    first = prepare_dataset(listing, config, workers=1)
    times = modification_times(config.prepared_path)
    assert prepare_dataset(listing, config, workers=1) == first
    assert modification_times(config.prepared_path) == times


@pytest.mark.parametrize(
    "change",
    [
        {"image_size_px": 9},
        {"resize": "square"},
        {"color": "gray"},
        {"test_fraction": 0.3},
        {"split_seed": 5},
        {"folds": 3},
        {"test_selection": "random", "split_seed": 1},
    ],
)
def test_other_values_prepare_again(tmp_path, change):
    listing, config = write_tree(tmp_path / "raw"), tree_config(tmp_path)
    first = prepare_dataset(listing, config, workers=1)
    changed = tree_config(tmp_path, **change)
    second = prepare_dataset(listing, changed, workers=1)
    assert second.values != first.values
    assert open_development(changed).info == second


@pytest.mark.parametrize("name", ["test/images.bin", "splits.json", "dataset.json"])
def test_a_damaged_folder_is_prepared_again(tmp_path, name):
    listing, config = write_tree(tmp_path / "raw"), tree_config(tmp_path)
    prepare_dataset(listing, config, workers=1)
    whole = read_all(config.prepared_path)
    file = config.prepared_path / name
    file.write_bytes(file.read_bytes()[:-3])
    prepare_dataset(listing, config, workers=1)
    assert read_all(config.prepared_path) == whole


def test_a_folder_with_other_content_is_never_replaced(tmp_path):
    listing, config = write_tree(tmp_path / "raw"), tree_config(tmp_path)
    config.prepared_path.mkdir(parents=True)
    (config.prepared_path / "holiday.jpg").write_text("precious")
    with pytest.raises(DatasetError, match="must be empty or hold a prepared dataset"):
        prepare_dataset(listing, config, workers=1)
    assert os.listdir(config.prepared_path) == ["holiday.jpg"]


def test_drawn_images_are_packed_in_order(tmp_path):
    listing, config = drawn_listing(), tree_config(tmp_path, color="gray")
    prepare_dataset(listing, config, workers=4)
    images, _ = open_test(config)
    by_path = {record.path: record.pixels for record in listing.records}
    assert images.paths == sorted(images.paths)
    for index, path in enumerate(images.paths):
        assert np.array_equal(images.image(index)[:, :, 0], by_path[path])


def test_progress_reaches_the_end(tmp_path):
    calls = []
    listing = write_tree(tmp_path / "raw")
    prepare_dataset(
        listing, tree_config(tmp_path), workers=1, on_progress=lambda *call: calls.append(call)
    )
    assert calls == [(done, 18) for done in range(1, 19)]


def test_official_roles_are_kept_and_undecided_ones_decided(tmp_path):
    roles = {"c00": "train", "c01": "train", "c02": "train", "c03": "query", "c04": "gallery"}
    listing = drawn_listing(num_classes=5)
    records = [replace(r, role=roles[r.class_name]) for r in listing.records]
    official = tree_config(tmp_path / "1")
    info = prepare_dataset(SourceListing(records, None), official)
    assert sorted(set(open_test(official)[0].roles)) == ["gallery", "query"]
    assert "test_fraction" not in info.values
    decided = tree_config(tmp_path / "2")
    prepare_dataset(drawn_listing(), decided)
    assert set(open_test(decided)[0].roles) == {"test"}
    assert set(open_development(decided).train.roles) == {"train"}


def test_the_written_hashes_are_those_of_the_files(tmp_path):
    config = tree_config(tmp_path)
    info = prepare_dataset(write_tree(tmp_path / "raw"), config, workers=1)
    files = read_all(config.prepared_path)
    files.pop("dataset.json")
    assert {name: facts["sha256"] for name, facts in info.files.items()} == {
        name: hashlib.sha256(content).hexdigest() for name, content in files.items()
    }


@pytest.mark.parametrize("workers", [0, -1])
def test_less_than_one_worker_is_refused(tmp_path, workers):
    with pytest.raises(ValueError, match=f"workers must be >= 1.*Got {workers}"):
        prepare_dataset(drawn_listing(), tree_config(tmp_path), workers=workers)


def test_problems_with_the_records_come_before_any_writing(tmp_path):
    twice = [ImageRecord("a", "a", "undecided")] * 2
    with pytest.raises(DatasetError, match="each image once"):
        prepare_dataset(SourceListing(twice, None), tree_config(tmp_path))
    assert not (tmp_path / "prepared").exists()


KILLED = """
import sys, time
from pathlib import Path
from dml_core.data.prepare import prepare_dataset
from tests.references.drawn_datasets import tree_config, write_tree

def report(done, total):
    if done == 10:
        print("midway", flush=True)
        time.sleep(60)

folder = Path(sys.argv[1])
prepare_dataset(write_tree(folder / "raw"), tree_config(folder), workers=1, on_progress=report)
"""


def test_a_killed_preparation_leaves_nothing_half_made(tmp_path):
    config = tree_config(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "midway\n"
        os.kill(process.pid, signal.SIGKILL)
    assert any(".partial-" in name for name in os.listdir(tmp_path / "prepared"))
    with pytest.raises(DatasetError, match="is not prepared"):
        open_development(config)
    started = time.monotonic()
    prepare_dataset(write_tree(tmp_path / "raw"), config, workers=1)
    assert time.monotonic() - started < 30
    assert os.listdir(tmp_path / "prepared") == ["tiny"]
    verify_files(config.prepared_path)


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


def record(path, **continuous):
    return ImageRecord(path, "class", "train", continuous=continuous)


def test_records_are_sorted_by_path():
    ordered = sort_and_check([record("b"), record("ä"), record("B"), record("a")], dataset="tiny")
    assert [each.path for each in ordered] == ["B", "a", "b", "ä"]


def test_a_dataset_without_images_is_refused():
    with pytest.raises(DatasetError, match=r"'tiny' must have images. Found none"):
        sort_and_check([], dataset="tiny")


def test_a_duplicate_path_is_refused():
    with pytest.raises(DatasetError, match="Listed more often: 1, first 'a'"):
        sort_and_check([record("a"), record("b"), record("a")], dataset="tiny")


def test_other_continuous_labels_than_the_rest_are_refused():
    with pytest.raises(DatasetError, match=r"'b' must have .*\['x'\].*Got \['y'\]"):
        sort_and_check([record("a", x=1.0), record("b", y=1.0)], dataset="tiny")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_labels_that_are_not_finite_are_refused(value):
    with pytest.raises(DatasetError, match=f"'a' must have a finite 'x'.*Got {value}"):
        sort_and_check([record("a", x=value)], dataset="tiny")
