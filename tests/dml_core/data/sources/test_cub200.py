"""CUB-200-2011 is read from its official layout, and a partial download is told."""

import shutil
from pathlib import Path

import pytest

from dml_core.config.data import Cub200Data
from dml_core.data.records import DatasetError
from dml_core.data.sources.official import OfficialCounts
from dml_core.data.sources.published import CUB200_COUNTS, list_cub200
from tests.references.official_layouts import write_cub200


def test_the_first_classes_train_and_the_rest_test(tmp_path: Path):
    counts = write_cub200(tmp_path, train_classes=2, test_classes=3, images_per_class=2)
    listing = list_cub200(Cub200Data(raw=str(tmp_path)), counts=counts)
    roles = {record.class_name: record.role for record in listing.records}
    assert roles == {
        "001.Bird_1": "train",
        "002.Bird_2": "train",
        "003.Bird_3": "test",
        "004.Bird_4": "test",
        "005.Bird_5": "test",
    }
    assert len(listing.records) == 10


def test_records_are_sorted_and_their_files_lie_below_the_root(tmp_path: Path):
    counts = write_cub200(tmp_path)
    listing = list_cub200(Cub200Data(raw=str(tmp_path)), counts=counts)
    paths = [record.path for record in listing.records]
    assert paths == sorted(paths)
    assert paths[0] == "images/001.Bird_1/Bird_1_0001.jpg"
    for record in listing.records:
        assert record.file.resolve().is_relative_to(listing.root)
        assert record.file.read_bytes()[:2] == b"\xff\xd8"


@pytest.mark.parametrize("kind", ["gztar", "tar", "zip"])
@pytest.mark.parametrize("points_to", ["archive", "folder"])
def test_an_archive_is_unpacked_beside_itself(tmp_path: Path, kind: str, points_to: str):
    counts = write_cub200(tmp_path / "original")
    (tmp_path / "raw").mkdir()
    name = str(tmp_path / "raw" / "CUB_200_2011")
    archive = Path(shutil.make_archive(name, kind, tmp_path / "original"))
    config = Cub200Data(raw=str(archive if points_to == "archive" else archive.parent))
    listing = list_cub200(config, counts=counts)
    assert len(listing.records) == 12
    assert listing.root == (tmp_path / "raw/CUB_200_2011.unpacked/CUB_200_2011/images").resolve()


def test_the_unpacked_folder_itself_may_be_named(tmp_path: Path):
    counts = write_cub200(tmp_path)
    listing = list_cub200(Cub200Data(raw=str(tmp_path / "CUB_200_2011")), counts=counts)
    assert len(listing.records) == 12


def test_the_official_counts_are_those_of_the_papers():
    assert (
        OfficialCounts(train_classes=100, train_images=5_864, test_classes=100, test_images=5_924)
        == CUB200_COUNTS
    )


def test_a_dataset_that_is_too_small_is_refused_with_both_numbers(tmp_path: Path):
    write_cub200(tmp_path)
    with pytest.raises(DatasetError, match="test images must be 5,924, found 0"):
        list_cub200(Cub200Data(raw=str(tmp_path)))


def test_a_missing_image_is_named_with_the_list_that_has_it(tmp_path: Path):
    counts = write_cub200(tmp_path)
    (tmp_path / "CUB_200_2011/images/002.Bird_2/Bird_2_0005.jpg").unlink()
    with pytest.raises(DatasetError, match=r"dataset 'cub200' at") as caught:
        list_cub200(Cub200Data(raw=str(tmp_path)), counts=counts)
    assert "images/002.Bird_2/Bird_2_0005.jpg is listed in images.txt but missing." in str(
        caught.value
    )
    assert "images.txt lists 12 images, found 11 of them." in str(caught.value)
    assert "Download CUB_200_2011.tgz" in str(caught.value)


def test_many_missing_images_are_counted_not_all_listed(tmp_path: Path):
    counts = write_cub200(tmp_path, images_per_class=20)
    shutil.rmtree(tmp_path / "CUB_200_2011/images/002.Bird_2")
    with pytest.raises(DatasetError, match=r"\.\.\. and 11 more like these") as caught:
        list_cub200(Cub200Data(raw=str(tmp_path)), counts=counts)
    # One line of summary and nine files make the ten that are shown.
    assert str(caught.value).count("but missing") == 9


@pytest.mark.parametrize("name", ["images.txt", "image_class_labels.txt", "classes.txt"])
def test_a_missing_annotation_is_named(tmp_path: Path, name: str):
    counts = write_cub200(tmp_path)
    (tmp_path / "CUB_200_2011" / name).unlink()
    with pytest.raises(DatasetError, match=f"partial at .*: {name} must be there too"):
        list_cub200(Cub200Data(raw=str(tmp_path)), counts=counts)


def test_annotations_without_any_image_are_told(tmp_path: Path):
    counts = write_cub200(tmp_path)
    shutil.rmtree(tmp_path / "CUB_200_2011/images")
    with pytest.raises(DatasetError, match=r"images.txt lists 12 images, found 0 of them"):
        list_cub200(Cub200Data(raw=str(tmp_path)), counts=counts)


def test_an_image_without_a_class_is_named(tmp_path: Path):
    counts = write_cub200(tmp_path)
    labels = tmp_path / "CUB_200_2011/image_class_labels.txt"
    labels.write_text("".join(labels.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(DatasetError, match=r"images\.txt line 12 lists image 12"):
        list_cub200(Cub200Data(raw=str(tmp_path)), counts=counts)


def test_an_absent_dataset_says_what_to_download_and_which_key_points_to_it(tmp_path: Path):
    with pytest.raises(DatasetError, match=r"'cub200' is missing at .*nowhere") as caught:
        list_cub200(Cub200Data(raw=str(tmp_path / "nowhere")))
    assert "Caltech-UCSD Birds-200-2011" in str(caught.value)
    assert "set data.raw to" in str(caught.value)
