"""In-Shop is read from its official layout, with its query and gallery."""

import shutil
from collections import Counter
from pathlib import Path

import pytest

from dml_core.config.data import InshopData
from dml_core.data.records import DatasetError
from dml_core.data.sources.official import OfficialCounts
from dml_core.data.sources.published import INSHOP_COUNTS, list_inshop
from tests.references.official_layouts import write_inshop

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


def test_the_official_counts_are_those_of_the_papers():
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


def test_a_list_shorter_than_its_first_line_says_is_told(tmp_path: Path):
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
