"""Fashion-MNIST is read from its four idx files."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from dml_core.config.data import FashionMnistData
from dml_core.data.records import DatasetError
from dml_core.data.sources.fashion_mnist import (
    CLASS_NAMES,
    FASHION_MNIST_COUNTS,
    list_fashion_mnist,
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
