"""MATLAB annotations are read, and files that are none are named."""

from pathlib import Path

import numpy as np
import pytest
import scipy.io

from dml_core.data.records import DatasetError
from dml_core.data.sources.cars196 import read_class_names, read_structs
from tests.references.official_layouts import write_cars196


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
