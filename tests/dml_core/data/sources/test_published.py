"""Tests of CUB-200-2011, Stanford Online Products, In-Shop and Omniglot."""

import shutil
from collections import Counter
from pathlib import Path

import pytest

from dml_core.config.data import Cub200Data, InshopData, OmniglotData, SopData
from dml_core.data.records import DatasetError
from dml_core.data.sources.official import OfficialCounts
from dml_core.data.sources.published import (
    CUB200_COUNTS,
    INSHOP_COUNTS,
    OMNIGLOT_COUNTS,
    SOP_COUNTS,
    list_cub200,
    list_inshop,
    list_omniglot,
    list_sop,
)
from tests.references.official_layouts import write_cub200, write_inshop, write_omniglot, write_sop


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


def test_the_official_counts_of_cub200_are_those_of_the_papers():
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


def test_annotations_without_images_are_reported(tmp_path: Path):
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


def test_products_are_classes_and_the_lists_say_their_role(tmp_path: Path):
    counts = write_sop(tmp_path, train_classes=3, test_classes=2)
    listing = list_sop(SopData(raw=str(tmp_path)), counts=counts)
    roles = {record.class_name: record.role for record in listing.records}
    assert roles == {
        "00001": "train",
        "00002": "train",
        "00003": "train",
        "00004": "test",
        "00005": "test",
    }
    assert listing.records[0].path == "bicycle_final/100001_0.JPG"
    assert all(record.file.is_file() for record in listing.records)


def test_the_zip_is_read(tmp_path: Path):
    counts = write_sop(tmp_path / "original")
    name = str(tmp_path / "Stanford_Online_Products")
    archive = shutil.make_archive(name, "zip", tmp_path / "original")
    assert len(list_sop(SopData(raw=archive), counts=counts).records) == 10


def test_the_official_counts_of_sop_are_those_of_the_papers():
    assert (
        OfficialCounts(
            train_classes=11_318, train_images=59_551, test_classes=11_316, test_images=60_502
        )
        == SOP_COUNTS
    )


def test_a_list_that_is_cut_off_shows_in_the_counts(tmp_path: Path):
    counts = write_sop(tmp_path)
    file = tmp_path / "Stanford_Online_Products/Ebay_test.txt"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(DatasetError, match="test images must be 4, found 3"):
        list_sop(SopData(raw=str(tmp_path)), counts=counts)


def test_a_missing_image_is_named_with_its_own_list(tmp_path: Path):
    counts = write_sop(tmp_path)
    (tmp_path / "Stanford_Online_Products/bicycle_final/100004_1.JPG").unlink()
    with pytest.raises(DatasetError, match=r"100004_1\.JPG is listed in Ebay_test\.txt but"):
        list_sop(SopData(raw=str(tmp_path)), counts=counts)


def test_a_class_id_that_is_no_number_is_named_with_its_line(tmp_path: Path):
    counts = write_sop(tmp_path)
    file = tmp_path / "Stanford_Online_Products/Ebay_train.txt"
    file.write_text(file.read_text().replace("1 1 1 bic", "1 one 1 bic", 1))
    with pytest.raises(DatasetError, match=r"Ebay_train\.txt line 2 .*Got 'one'"):
        list_sop(SopData(raw=str(tmp_path)), counts=counts)


BENCHMARK = "In-shop Clothes Retrieval Benchmark"


def test_query_and_gallery_are_kept(tmp_path: Path):
    counts = write_inshop(tmp_path, train_classes=3, test_classes=2, images_per_class=3)
    listing = list_inshop(InshopData(raw=str(tmp_path)), counts=counts)
    assert Counter(record.role for record in listing.records) == {
        "train": 9,
        "query": 2,
        "gallery": 4,
    }
    assert {r.class_name for r in listing.records if r.role == "query"} == {
        "id_00000004",
        "id_00000005",
    }
    assert all(record.file.is_file() for record in listing.records)


@pytest.mark.parametrize("below", ["", BENCHMARK])
def test_the_high_resolution_images_do_as_well(tmp_path: Path, below: str):
    counts = write_inshop(tmp_path, image_folder="img_highres")
    listing = list_inshop(InshopData(raw=str(tmp_path / below)), counts=counts)
    assert listing.root.name == "img_highres"
    assert listing.records[0].path.startswith("img/MEN/Denim/id_")
    assert all(record.file.is_file() for record in listing.records)


def test_the_zip_beside_the_list_is_unpacked(tmp_path: Path):
    counts = write_inshop(tmp_path)
    images = tmp_path / BENCHMARK / "Img"
    shutil.make_archive(str(images / "img"), "zip", images, "img")
    shutil.rmtree(images / "img")
    listing = list_inshop(InshopData(raw=str(tmp_path)), counts=counts)
    assert listing.root == (images / "img.unpacked" / "img").resolve()
    assert all(record.file.is_file() for record in listing.records)


def test_an_archive_within_an_archive_is_unpacked(tmp_path: Path):
    counts = write_inshop(tmp_path / "original")
    images = tmp_path / "original" / BENCHMARK / "Img"
    shutil.make_archive(str(images / "img"), "zip", images, "img")
    shutil.rmtree(images / "img")
    archive = shutil.make_archive(str(tmp_path / BENCHMARK), "zip", tmp_path / "original")
    listing = list_inshop(InshopData(raw=archive), counts=counts)
    assert len(listing.records) == 15
    assert all(record.file.is_file() for record in listing.records)


def test_the_official_counts_of_inshop_are_those_of_the_papers():
    assert (
        OfficialCounts(
            train_classes=3_997,
            train_images=25_882,
            test_classes=3_985,
            test_images=14_218 + 12_612,
            query_images=14_218,
            gallery_images=12_612,
        )
        == INSHOP_COUNTS
    )


def _partition(tmp_path: Path) -> Path:
    return tmp_path / BENCHMARK / "Eval" / "list_eval_partition.txt"


def test_a_list_shorter_than_its_stated_length_is_reported(tmp_path: Path):
    counts = write_inshop(tmp_path)
    lines = _partition(tmp_path).read_text().splitlines(keepends=True)
    _partition(tmp_path).write_text("".join(lines[:-1]))
    with pytest.raises(DatasetError, match="the 15 images of its first line, found 14") as caught:
        list_inshop(InshopData(raw=str(tmp_path)), counts=counts)
    assert "gallery images must be 4, found 3." in str(caught.value)


def test_an_unknown_status_is_named_with_its_line(tmp_path: Path):
    counts = write_inshop(tmp_path)
    text = _partition(tmp_path).read_text().replace("query", "probe", 1)
    _partition(tmp_path).write_text(text)
    with pytest.raises(DatasetError, match=r"line 12 .*probe"):
        list_inshop(InshopData(raw=str(tmp_path)), counts=counts)


def test_a_list_without_images_says_so(tmp_path: Path):
    counts = write_inshop(tmp_path)
    shutil.rmtree(tmp_path / BENCHMARK / "Img")
    with pytest.raises(DatasetError, match="img/MEN cannot be found") as caught:
        list_inshop(InshopData(raw=str(tmp_path)), counts=counts)
    assert "DeepFashion" in str(caught.value)


def test_an_empty_list_is_refused(tmp_path: Path):
    counts = write_inshop(tmp_path)
    _partition(tmp_path).write_text("")
    with pytest.raises(DatasetError, match=r"list_eval_partition\.txt line 1"):
        list_inshop(InshopData(raw=str(tmp_path)), counts=counts)


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
