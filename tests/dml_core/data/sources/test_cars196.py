"""Tests of Cars-196."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import scipy.io

from dml_core.config.data import Cars196Data
from dml_core.data.records import DatasetError
from dml_core.data.sources.cars196 import (
    CARS196_COUNTS,
    list_cars196,
    read_class_names,
    read_structs,
)
from dml_core.data.sources.official import OfficialCounts
from tests.references.official_layouts import write_cars196, write_cars196_two_folders


def test_classes_of_one_folder_are_numbered_and_split_in_halves(tmp_path: Path):
    counts = write_cars196(tmp_path, train_classes=2, test_classes=1)
    listing = list_cars196(Cars196Data(raw=str(tmp_path)), counts=counts)
    roles = {record.class_name: record.role for record in listing.records}
    assert roles == {
        "001.Maker Model/1 2012": "train",
        "002.Maker Model/2 2012": "train",
        "003.Maker Model/3 2012": "test",
    }
    assert [record.path for record in listing.records][:2] == [
        "car_ims/000001.jpg",
        "car_ims/000002.jpg",
    ]


def test_the_two_folders_are_put_together(tmp_path: Path):
    counts = write_cars196_two_folders(tmp_path, images_per_class=4)
    listing = list_cars196(Cars196Data(raw=str(tmp_path)), counts=counts)
    first = [r.path for r in listing.records if r.class_name.startswith("001.")]
    assert first == [
        "cars_test/00001.jpg",
        "cars_test/00002.jpg",
        "cars_train/00001.jpg",
        "cars_train/00002.jpg",
    ]
    assert listing.root == tmp_path.resolve()
    assert all(record.file.is_file() for record in listing.records)


def _as_downloaded(tmp_path: Path) -> tuple[Path, OfficialCounts]:
    counts = write_cars196(tmp_path / "original")
    raw = tmp_path / "raw"
    raw.mkdir()
    shutil.make_archive(str(raw / "car_ims"), "gztar", tmp_path / "original", "car_ims")
    shutil.move(tmp_path / "original" / "cars_annos.mat", raw)
    return raw, counts


def test_the_download_of_an_archive_and_a_file_is_read(tmp_path: Path):
    raw, counts = _as_downloaded(tmp_path)
    listing = list_cars196(Cars196Data(raw=str(raw)), counts=counts)
    assert len(listing.records) == 12
    assert all(record.file.is_file() for record in listing.records)


def test_the_annotation_is_found_beside_a_named_archive(tmp_path: Path):
    raw, counts = _as_downloaded(tmp_path)
    listing = list_cars196(Cars196Data(raw=str(raw / "car_ims.tar.gz")), counts=counts)
    assert len(listing.records) == 12


def test_the_two_folders_are_read_from_their_archives(tmp_path: Path):
    original, raw = tmp_path / "original", tmp_path / "raw"
    counts = write_cars196_two_folders(original)
    raw.mkdir()
    for stem, folder in (
        ("cars_train", "cars_train"),
        ("cars_test", "cars_test"),
        ("car_devkit", "devkit"),
    ):
        shutil.make_archive(str(raw / stem), "gztar", original, folder)
    shutil.move(original / "cars_test_annos_withlabels.mat", raw)
    listing = list_cars196(Cars196Data(raw=str(raw)), counts=counts)
    assert len(listing.records) == 16
    assert all(record.file.resolve().is_relative_to(listing.root) for record in listing.records)


def test_the_official_counts_are_those_of_the_papers():
    assert (
        OfficialCounts(train_classes=98, train_images=8_054, test_classes=98, test_images=8_131)
        == CARS196_COUNTS
    )


def test_a_missing_image_is_named(tmp_path: Path):
    counts = write_cars196(tmp_path)
    (tmp_path / "car_ims/000007.jpg").unlink()
    with pytest.raises(
        DatasetError, match=r"car_ims/000007\.jpg is listed in cars_annos\.mat but missing"
    ):
        list_cars196(Cars196Data(raw=str(tmp_path)), counts=counts)


def test_test_annotations_without_labels_do_not_do(tmp_path: Path):
    counts = write_cars196_two_folders(tmp_path)
    (tmp_path / "cars_test_annos_withlabels.mat").unlink()
    with pytest.raises(DatasetError, match=r"cars_test_annos_withlabels\.mat cannot be found"):
        list_cars196(Cars196Data(raw=str(tmp_path)), counts=counts)


def test_images_without_annotations_are_reported(tmp_path: Path):
    counts = write_cars196(tmp_path)
    (tmp_path / "cars_annos.mat").unlink()
    with pytest.raises(DatasetError, match=r"cars_annos\.mat cannot be found"):
        list_cars196(Cars196Data(raw=str(tmp_path)), counts=counts)


def test_structs_and_names_are_read(tmp_path: Path):
    write_cars196(tmp_path, train_classes=1, test_classes=1, images_per_class=2)
    structs = read_structs(tmp_path / "cars_annos.mat", fields=("relative_im_path", "class"))
    assert [(s["relative_im_path"], s["class"]) for s in structs] == [
        ("car_ims/000001.jpg", 1),
        ("car_ims/000002.jpg", 1),
        ("car_ims/000003.jpg", 2),
        ("car_ims/000004.jpg", 2),
    ]
    assert read_class_names(tmp_path / "cars_annos.mat") == [
        "Maker Model/1 2012",
        "Maker Model/2 2012",
    ]


def test_a_single_annotation_is_still_a_list(tmp_path: Path):
    write_cars196(tmp_path, train_classes=1, test_classes=0, images_per_class=1)
    structs = read_structs(tmp_path / "cars_annos.mat", fields=("class",))
    assert [struct["class"] for struct in structs] == [1]
    assert read_class_names(tmp_path / "cars_annos.mat") == ["Maker Model/1 2012"]


@pytest.mark.parametrize("kept", [0, 60, 300])
def test_a_file_that_is_cut_off_is_named(tmp_path: Path, kept: int):
    write_cars196(tmp_path)
    file = tmp_path / "cars_annos.mat"
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(DatasetError, match=r"cars_annos\.mat must"):
        read_structs(file, fields=("class",))


def test_a_page_saved_instead_of_the_file_is_named(tmp_path: Path):
    file = tmp_path / "cars_annos.mat"
    file.write_text("<html>404 Not Found</html>" * 20)
    with pytest.raises(DatasetError, match="must be a MATLAB file"):
        read_structs(file, fields=("class",))


def test_a_missing_field_is_named(tmp_path: Path):
    write_cars196(tmp_path)
    with pytest.raises(DatasetError, match="Found one without fname"):
        read_structs(tmp_path / "cars_annos.mat", fields=("class", "fname"))


def test_a_missing_variable_is_named(tmp_path: Path):
    scipy.io.savemat(tmp_path / "other.mat", {"boxes": np.zeros((2, 2))})
    with pytest.raises(DatasetError, match="must hold the variable 'class_names'"):
        read_class_names(tmp_path / "other.mat")
