"""Stanford Online Products is read from its official layout."""

import shutil
from pathlib import Path

import pytest

from dml_core.config.data import SopData
from dml_core.data.records import DatasetError
from dml_core.data.sources.official import OfficialCounts
from dml_core.data.sources.published import SOP_COUNTS, list_sop
from tests.references.official_layouts import write_sop


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


def test_the_official_counts_are_those_of_the_papers():
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
