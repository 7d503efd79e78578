"""Lists Stanford Online Products in its official layout."""

from pathlib import Path

from dml_core.config.data import SopData
from dml_core.data.records import ImageRecord, Role, SourceListing
from dml_core.data.sources.official import (
    OfficialCounts,
    inside_path,
    official_listing,
    read_rows,
    whole_number,
)
from dml_core.data.sources.raw_search import Distribution, RawSearch, common_root

SOP = Distribution(
    name="sop",
    title="Stanford Online Products (published by Stanford's computational vision lab with the "
    "lifted structure paper)",
    download="Stanford_Online_Products.zip",
    archive_stems=("stanford_online_products*", "stanford-online-products*", "sop"),
)
SOP_COUNTS = OfficialCounts(
    train_classes=11_318, train_images=59_551, test_classes=11_316, test_images=60_502
)
_COLUMNS = "image_id class_id super_class_id path"


def list_sop(config: SopData, *, counts: OfficialCounts = SOP_COUNTS) -> SourceListing:
    """Returns the products; a class is one product (class_id), not its super class.

    Raises:
        DatasetError: if the download is missing, partial or altered.
    """
    folder = RawSearch(config, SOP).require("Ebay_train.txt", "Ebay_test.txt")
    return official_listing(
        {
            "Ebay_train.txt": _read_records(folder, "Ebay_train.txt", role="train"),
            "Ebay_test.txt": _read_records(folder, "Ebay_test.txt", role="test"),
        },
        root=common_root([folder]),
        distribution=SOP,
        counts=counts,
    )


def _read_records(folder: Path, name: str, *, role: Role) -> list[ImageRecord]:
    file = folder / name
    records = []
    for line, (_, class_id, _, text) in read_rows(file, columns=_COLUMNS, skip_lines=1):
        path = inside_path(text, file, line)
        # Zero-padded, so that classes sort by their number.
        class_name = f"{whole_number(class_id, file, line):05d}"
        records.append(
            ImageRecord(path=str(path), class_name=class_name, role=role, file=folder / path)
        )
    return records
