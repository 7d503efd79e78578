"""Lists Cars-196 in its two official layouts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io

from dml_core.config.data import Cars196Data
from dml_core.data.records import DatasetError, ImageRecord, SourceListing
from dml_core.data.sources.official import OfficialCounts, inside_path, official_listing
from dml_core.data.sources.raw_search import Distribution, RawSearch, common_root


def read_structs(file: Path, *, fields: tuple[str, ...]) -> list[dict[str, Any]]:
    """Returns the elements of the struct array `annotations`, which must have these fields."""
    # A struct array of one element is returned without its array.
    elements = [item for item in np.atleast_1d(_read_variable(file, "annotations")).tolist()]
    for element in elements:
        missing = [f for f in fields if not isinstance(element, dict) or f not in element]
        if missing:
            raise DatasetError(
                f"{file} must have annotations with the fields {', '.join(fields)}. "
                f"Found one without {', '.join(missing)}. Download it again."
            )
    return elements


def read_class_names(file: Path) -> list[str]:
    """Returns the cell array `class_names` as text, class 1 first."""
    return [str(name) for name in np.atleast_1d(_read_variable(file, "class_names")).tolist()]


def _read_variable(file: Path, name: str) -> Any:
    try:
        content = scipy.io.loadmat(file, simplify_cells=True, variable_names=[name])
    except Exception as error:
        # The reader raises many kinds of errors for damaged bytes, from IndexError to zlib.error.
        raise DatasetError(
            f"{file} must be a MATLAB file of version 5 to 7 with the annotations. "
            f"It cannot be read: {error}. Download it again."
        ) from error
    if name not in content:
        raise DatasetError(
            f"{file} must hold the variable {name!r}, as the official file does. Found none. "
            "Download it again."
        )
    return content[name]


CARS196 = Distribution(
    name="cars196",
    title="Stanford Cars (Cars-196, published by Jonathan Krause, Stanford's vision lab)",
    download="car_ims.tgz and cars_annos.mat (or cars_train.tgz, cars_test.tgz, car_devkit.tgz "
    "and cars_test_annos_withlabels.mat)",
    archive_stems=(
        "car_ims*",
        "cars_train*",
        "cars_test*",
        "car*devkit*",
        "cars196*",
        "stanford_cars*",
        "stanford-cars*",
    ),
    in_parts=True,
)
CARS196_COUNTS = OfficialCounts(
    train_classes=98, train_images=8_054, test_classes=98, test_images=8_131
)
_TRAIN_LIST = "cars_train_annos.mat"
_TEST_LIST = "cars_test_annos_withlabels.mat"


def list_cars196(config: Cars196Data, *, counts: OfficialCounts = CARS196_COUNTS) -> SourceListing:
    """Returns the cars: the first half of the classes for training, the rest for testing.

    The dataset's own split into train and test images, within classes, is ignored.

    Args:
        config: where the download is.
        counts: the official counts; train_classes also defines the split.

    Raises:
        DatasetError: if the download is missing, partial or altered.
    """
    search = RawSearch(config, CARS196)
    if search.find("cars_annos.mat") is None and search.find(_TRAIN_LIST) is not None:
        return _list_two_folders(search, counts)
    return _list_one_folder(search, counts)


def _list_one_folder(search: RawSearch, counts: OfficialCounts) -> SourceListing:
    annotation = search.require("cars_annos.mat") / "cars_annos.mat"
    folder = search.require("car_ims") / "car_ims"
    structs = read_structs(annotation, fields=("relative_im_path", "class"))
    names = [str(struct["relative_im_path"]).removeprefix("car_ims/") for struct in structs]
    class_names = _number(read_class_names(annotation))
    records = _records(annotation, folder, names, structs, class_names, counts)
    return official_listing(
        {annotation.name: records}, root=common_root([folder]), distribution=CARS196, counts=counts
    )


def _list_two_folders(search: RawSearch, counts: OfficialCounts) -> SourceListing:
    class_names = _number(read_class_names(search.require("cars_meta.mat") / "cars_meta.mat"))
    folders, groups = [], {}
    for list_name, folder_name in ((_TRAIN_LIST, "cars_train"), (_TEST_LIST, "cars_test")):
        annotation = search.require(list_name) / list_name
        folder = search.require(folder_name) / folder_name
        structs = read_structs(annotation, fields=("fname", "class"))
        names = [str(struct["fname"]) for struct in structs]
        groups[list_name] = _records(annotation, folder, names, structs, class_names, counts)
        folders.append(folder)
    return official_listing(groups, root=common_root(folders), distribution=CARS196, counts=counts)


def _number(class_names: Sequence[str]) -> dict[int, str]:
    """Returns class names by class id, prefixed with the id so that they sort by it."""
    return {number: f"{number:03d}.{name}" for number, name in enumerate(class_names, start=1)}


def _records(
    annotation: Path,
    folder: Path,
    names: Sequence[str],
    structs: Sequence[dict[str, Any]],
    class_names: dict[int, str],
    counts: OfficialCounts,
) -> list[ImageRecord]:
    records = []
    for row, (name, struct) in enumerate(zip(names, structs, strict=True), start=1):
        relative = inside_path(name, annotation, row)
        class_id = struct["class"]
        if class_id not in class_names:
            raise DatasetError(
                f"{annotation} annotation {row} must have a class from 1 to {len(class_names)}. "
                f"Got {class_id!r}. {CARS196.advice()}"
            )
        records.append(
            ImageRecord(
                path=f"{folder.name}/{relative}",
                class_name=class_names[class_id],
                role="train" if class_id <= counts.train_classes else "test",
                file=folder / relative,
            )
        )
    return records
