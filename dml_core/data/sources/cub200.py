"""Lists CUB-200-2011 in its official layout."""

from pathlib import Path

from dml_core.config.data import Cub200Data
from dml_core.data.records import DatasetError, ImageRecord, SourceListing
from dml_core.data.sources.official import (
    OfficialCounts,
    inside_path,
    official_listing,
    read_rows,
    whole_number,
)
from dml_core.data.sources.raw_search import Distribution, RawSearch, common_root

CUB200 = Distribution(
    name="cub200",
    title="Caltech-UCSD Birds-200-2011 (published by Caltech's vision group, Perona lab)",
    download="CUB_200_2011.tgz",
    archive_stems=("cub_200_2011*", "cub-200-2011*", "cub200*"),
)
CUB200_COUNTS = OfficialCounts(
    train_classes=100, train_images=5_864, test_classes=100, test_images=5_924
)


def list_cub200(config: Cub200Data, *, counts: OfficialCounts = CUB200_COUNTS) -> SourceListing:
    """Returns the birds: the first half of the classes for training, the rest for the test.

    Args:
        config: where the download is.
        counts: numbers to check; its train_classes is also where the split lies.

    Raises:
        DatasetError: if the download is missing, partial or altered.
    """
    folder = RawSearch(config, CUB200).require(
        "images.txt", "image_class_labels.txt", "classes.txt"
    )
    records = _read_records(folder, num_train_classes=counts.train_classes)
    return official_listing(
        {"images.txt": records},
        root=common_root([folder / "images"]),
        distribution=CUB200,
        counts=counts,
    )


def _read_records(folder: Path, *, num_train_classes: int) -> list[ImageRecord]:
    names = _read_pairs(folder / "classes.txt", columns="class_id class_name")
    class_ids = _read_pairs(folder / "image_class_labels.txt", columns="image_id class_id")
    listing = folder / "images.txt"
    records = []
    for line, (image_id, path) in read_rows(listing, columns="image_id path"):
        class_id = class_ids.get(image_id)
        if class_id is None or class_id not in names:
            raise DatasetError(
                f"{listing} line {line} lists image {image_id}, whose class must be in "
                f"image_class_labels.txt and classes.txt. Found class {class_id}. "
                f"{CUB200.advice()}"
            )
        relative = "images" / inside_path(path, listing, line)
        is_train = whole_number(class_id, listing, line) <= num_train_classes
        records.append(
            ImageRecord(
                path=str(relative),
                class_name=names[class_id],
                role="train" if is_train else "test",
                file=folder / relative,
            )
        )
    return records


def _read_pairs(file: Path, *, columns: str) -> dict[str, str]:
    return {key: value for _, (key, value) in read_rows(file, columns=columns)}
