"""Lists CUB-200-2011, Stanford Online Products, In-Shop and Omniglot in their official layouts."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from dml_core.config.data import Cub200Data, InshopData, OmniglotData, SopData
from dml_core.data.records import DatasetError, ImageRecord, Role, SourceListing
from dml_core.data.sources.official import (
    OfficialCounts,
    inside_path,
    line_error,
    official_listing,
    read_lines,
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
    """Returns the birds: the first half of the classes for training, the rest for testing.

    Args:
        config: where the download is.
        counts: the official counts; train_classes also defines the split.

    Raises:
        DatasetError: if the download is missing, partial or altered.
    """
    folder = RawSearch(config, CUB200).require(
        "images.txt", "image_class_labels.txt", "classes.txt"
    )
    records = _read_cub200(folder, num_train_classes=counts.train_classes)
    return official_listing(
        {"images.txt": records},
        root=common_root([folder / "images"]),
        distribution=CUB200,
        counts=counts,
    )


def _read_cub200(folder: Path, *, num_train_classes: int) -> list[ImageRecord]:
    names = _read_cub200_pairs(folder / "classes.txt", columns="class_id class_name")
    class_ids = _read_cub200_pairs(folder / "image_class_labels.txt", columns="image_id class_id")
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


def _read_cub200_pairs(file: Path, *, columns: str) -> dict[str, str]:
    return {key: value for _, (key, value) in read_rows(file, columns=columns)}


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
_SOP_COLUMNS = "image_id class_id super_class_id path"


def list_sop(config: SopData, *, counts: OfficialCounts = SOP_COUNTS) -> SourceListing:
    """Returns the products; a class is one product (class_id), not a super class.

    Raises:
        DatasetError: if the download is missing, partial or altered.
    """
    folder = RawSearch(config, SOP).require("Ebay_train.txt", "Ebay_test.txt")
    return official_listing(
        {
            "Ebay_train.txt": _read_sop(folder, "Ebay_train.txt", role="train"),
            "Ebay_test.txt": _read_sop(folder, "Ebay_test.txt", role="test"),
        },
        root=common_root([folder]),
        distribution=SOP,
        counts=counts,
    )


def _read_sop(folder: Path, name: str, *, role: Role) -> list[ImageRecord]:
    file = folder / name
    records = []
    for line, (_, class_id, _, text) in read_rows(file, columns=_SOP_COLUMNS, skip_lines=1):
        path = inside_path(text, file, line)
        # Zero-padded, so that classes sort by their number.
        class_name = f"{whole_number(class_id, file, line):05d}"
        records.append(
            ImageRecord(path=str(path), class_name=class_name, role=role, file=folder / path)
        )
    return records


INSHOP = Distribution(
    name="inshop",
    title="DeepFashion's In-shop Clothes Retrieval Benchmark (published by the multimedia lab "
    "of the Chinese University of Hong Kong)",
    download="Img/img.zip and Eval/list_eval_partition.txt",
    archive_stems=("img", "in-shop*", "inshop*", "in_shop*", "img_highres"),
    in_parts=True,
)
INSHOP_COUNTS = OfficialCounts(
    train_classes=3_997,
    train_images=25_882,
    test_classes=3_985,
    test_images=26_830,
    query_images=14_218,
    gallery_images=12_612,
)
_INSHOP_LIST = "list_eval_partition.txt"
_INSHOP_FOLDERS = ("img", "img_highres")
_INSHOP_ROLES: Mapping[str, Role] = {"train": "train", "query": "query", "gallery": "gallery"}


def list_inshop(config: InshopData, *, counts: OfficialCounts = INSHOP_COUNTS) -> SourceListing:
    """Returns the clothes; a class is one item, and test images are query or gallery.

    Images are in `img`, or in `img_highres` if only that exists.

    Raises:
        DatasetError: if the download is missing, partial or altered.
    """
    search = RawSearch(config, INSHOP)
    partition = search.require(_INSHOP_LIST) / _INSHOP_LIST
    rows = _read_inshop(partition)
    folder = _find_inshop_images(search, [path for path, _, _ in rows])
    records = [
        ImageRecord(
            path=str(path), class_name=item, role=role, file=folder.joinpath(*path.parts[1:])
        )
        for path, item, role in rows
    ]
    return official_listing(
        {_INSHOP_LIST: records},
        root=common_root([folder]),
        distribution=INSHOP,
        counts=counts,
        other_problems=_check_inshop_count(partition, len(rows)),
    )


def _read_inshop(file: Path) -> list[tuple[PurePosixPath, str, Role]]:
    rows = []
    columns = "image_name item_id evaluation_status"
    for line, (name, item, status) in read_rows(file, columns=columns, skip_lines=2):
        path = inside_path(name, file, line)
        if status not in _INSHOP_ROLES or len(path.parts) < 3:
            rule = "must name an image below img, its item, and one of train, query and gallery"
            raise line_error(file, line, rule, f"{name} {item} {status}")
        rows.append((path, item, _INSHOP_ROLES[status]))
    return rows


def _check_inshop_count(file: Path, num_rows: int) -> list[str]:
    first = (read_lines(file) or [""])[0].strip()
    stated = whole_number(first, file, 1)
    if stated == num_rows:
        return []
    return [
        f"{_INSHOP_LIST} must list the {stated:,} images of its first line, found {num_rows:,}."
    ]


def _find_inshop_images(search: RawSearch, paths: list[PurePosixPath]) -> Path:
    """Returns the folder of the images, which listed paths call `img`."""
    # Other folders may be called `img` too, so one of its subfolders must exist.
    parts = sorted({path.parts[1] for path in paths})
    for name in _INSHOP_FOLDERS:
        for part in parts:
            folder = search.find(f"{name}/{part}")
            if folder is not None:
                return folder / name
    return search.require(f"img/{parts[0]}" if parts else "img") / "img"


OMNIGLOT = Distribution(
    name="omniglot",
    title="Omniglot (published by Brenden Lake with the one-shot learning paper)",
    download="images_background.zip and images_evaluation.zip",
    archive_stems=("images_background", "images_evaluation", "omniglot*"),
    in_parts=True,
)
OMNIGLOT_COUNTS = OfficialCounts(
    train_classes=964, train_images=19_280, test_classes=659, test_images=13_180
)


def list_omniglot(
    config: OmniglotData, *, counts: OfficialCounts = OMNIGLOT_COUNTS
) -> SourceListing:
    """Returns the drawings; a class is a character of an alphabet, such as `Greek/character01`.

    Background characters are for training, evaluation characters for testing.

    Raises:
        DatasetError: if the download is missing, partial or altered.
    """
    search = RawSearch(config, OMNIGLOT)
    background = search.require("images_background") / "images_background"
    evaluation = search.require("images_evaluation") / "images_evaluation"
    groups = {
        "images_background": _read_omniglot(background, role="train"),
        "images_evaluation": _read_omniglot(evaluation, role="test"),
    }
    return official_listing(
        groups,
        root=common_root([background, evaluation]),
        distribution=OMNIGLOT,
        counts=counts,
        other_problems=_uneven_characters(groups, counts.train_images // counts.train_classes),
    )


def _read_omniglot(folder: Path, *, role: Role) -> list[ImageRecord]:
    return [
        ImageRecord(
            path=file.relative_to(folder.parent).as_posix(),
            class_name=file.parent.relative_to(folder).as_posix(),
            role=role,
            file=file,
        )
        for file in sorted(folder.glob("*/*/*.png"))
        if not file.name.startswith(".")
    ]


def _uneven_characters(groups: dict[str, list[ImageRecord]], drawings: int) -> list[str]:
    lines = []
    for part, records in groups.items():
        for name, found in Counter(record.class_name for record in records).items():
            if found != drawings:
                lines.append(f"{part}/{name} must have {drawings} drawings, found {found}.")
    return lines
