"""Tests of Fashion-MNIST and its idx files."""

import gzip
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dml_core.config.data import FashionMnistData
from dml_core.data.records import DatasetError
from dml_core.data.sources.fashion_mnist import (
    CLASS_NAMES,
    FASHION_MNIST_COUNTS,
    list_fashion_mnist,
    read_idx,
)
from tests.references.official_layouts import idx_bytes, write_fashion_mnist


@pytest.mark.parametrize("gzipped", [True, False])
def test_all_images_come_with_their_pixels_and_no_role(tmp_path: Path, gzipped: bool):
    counts = write_fashion_mnist(tmp_path, train_images=20, test_images=10, gzipped=gzipped)
    listing = list_fashion_mnist(FashionMnistData(raw=str(tmp_path)), counts=counts)
    assert len(listing.records) == 30
    assert {record.role for record in listing.records} == {"undecided"}
    assert listing.records[0].path == "t10k/00000"
    # Twenty training images seeded by their number; the writer's labels go round the classes.
    images = np.random.default_rng(20).integers(0, 256, (20, 28, 28), dtype=np.uint8)
    thirteenth = next(r for r in listing.records if r.path == "train/00013")
    assert np.array_equal(thirteenth.pixels, images[13])
    assert thirteenth.class_name == "3_dress"


def test_class_names_sort_by_label():
    assert sorted(CLASS_NAMES) == list(CLASS_NAMES)
    assert len(set(CLASS_NAMES)) == 10


def test_an_archive_of_the_files_is_read(tmp_path: Path):
    counts = write_fashion_mnist(tmp_path / "original")
    archive = shutil.make_archive(str(tmp_path / "files"), "zip", tmp_path / "original")
    config = FashionMnistData(raw=archive)
    assert len(list_fashion_mnist(config, counts=counts).records) == 30


def test_the_official_counts_are_seventy_thousand(tmp_path: Path):
    assert dict(FASHION_MNIST_COUNTS) == {"train": 60_000, "t10k": 10_000}
    write_fashion_mnist(tmp_path)
    with pytest.raises(DatasetError, match=r"must hold 60,000 entries .*Found 20"):
        list_fashion_mnist(FashionMnistData(raw=str(tmp_path)))


def test_a_missing_file_is_named(tmp_path: Path):
    counts = write_fashion_mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DatasetError, match=r"t10k-labels-idx1-ubyte.*cannot be found"):
        list_fashion_mnist(FashionMnistData(raw=str(tmp_path)), counts=counts)


def test_a_label_beyond_the_classes_is_refused(tmp_path: Path):
    counts = write_fashion_mnist(tmp_path, train_images=2, test_images=2, gzipped=False)
    labels = np.array([3, 10], dtype=np.uint8)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx_bytes(labels))
    with pytest.raises(DatasetError, match=r"labels from 0 to 9. Got 10"):
        list_fashion_mnist(FashionMnistData(raw=str(tmp_path)), counts=counts)


def test_the_absent_package_is_named(tmp_path: Path):
    with pytest.raises(DatasetError, match="package dataset-fashion-mnist"):
        list_fashion_mnist(FashionMnistData(raw=str(tmp_path / "nowhere")))


QUICK = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@QUICK
@given(
    shape=st.lists(st.integers(0, 5), min_size=1, max_size=3),
    seed=st.integers(0, 2**32 - 1),
    gzipped=st.booleans(),
)
def test_what_is_written_is_read(tmp_path: Path, shape: list[int], seed: int, gzipped: bool):
    array = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    content = idx_bytes(array)
    (tmp_path / "file").write_bytes(gzip.compress(content) if gzipped else content)
    result = read_idx(tmp_path / "file", num_axes=array.ndim)
    assert result.dtype == np.uint8
    assert np.array_equal(result, array)


@QUICK
@given(kept=st.integers(0, 4 + 4 * 3 + 2 * 3 * 4 - 1))
def test_every_truncation_is_refused(tmp_path: Path, kept: int):
    content = idx_bytes(np.zeros((2, 3, 4), dtype=np.uint8))
    (tmp_path / "images").write_bytes(content[:kept])
    with pytest.raises(DatasetError, match="images must"):
        read_idx(tmp_path / "images", num_axes=3)


def test_a_file_that_is_too_long_is_refused_with_both_lengths(tmp_path: Path):
    (tmp_path / "labels").write_bytes(idx_bytes(np.zeros(5, dtype=np.uint8)) + b"\0")
    with pytest.raises(DatasetError, match=r"must hold 5 bytes .*Found 6"):
        read_idx(tmp_path / "labels", num_axes=1)


def test_labels_in_place_of_images_are_refused(tmp_path: Path):
    (tmp_path / "images").write_bytes(idx_bytes(np.zeros(5, dtype=np.uint8)))
    with pytest.raises(DatasetError, match=r"starts with 00000803. Got 00000801"):
        read_idx(tmp_path / "images", num_axes=3)


def test_a_broken_gzip_file_is_refused(tmp_path: Path):
    content = gzip.compress(idx_bytes(np.arange(200, dtype=np.uint8)))
    (tmp_path / "labels.gz").write_bytes(content[:-12])
    with pytest.raises(DatasetError, match="must be a complete gzip file"):
        read_idx(tmp_path / "labels.gz", num_axes=1)
