"""Lists DeepFashion's In-Shop Clothes Retrieval in its official layout."""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from dml_core.config.data import InshopData
from dml_core.data.records import ImageRecord, Role, SourceListing
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
_LIST = "list_eval_partition.txt"
_IMAGE_FOLDERS = ("img", "img_highres")
_ROLES: Mapping[str, Role] = {"train": "train", "query": "query", "gallery": "gallery"}


def list_inshop(config: InshopData, *, counts: OfficialCounts = INSHOP_COUNTS) -> SourceListing:
    """Returns the clothes; a class is one item, and the test images are query or gallery.

    Images are taken from `img`, or from `img_highres` where only that is there.

    Raises:
        DatasetError: if the download is missing, partial or altered.
    """
    search = RawSearch(config, INSHOP)
    partition = search.require(_LIST) / _LIST
    rows = _read_partition(partition)
    folder = _find_images(search, [path for path, _, _ in rows])
    records = [
        ImageRecord(
            path=str(path), class_name=item, role=role, file=folder.joinpath(*path.parts[1:])
        )
        for path, item, role in rows
    ]
    return official_listing(
        {_LIST: records},
        root=common_root([folder]),
        distribution=INSHOP,
        counts=counts,
        other_problems=_check_stated_count(partition, len(rows)),
    )


def _read_partition(file: Path) -> list[tuple[PurePosixPath, str, Role]]:
    rows = []
    columns = "image_name item_id evaluation_status"
    for line, (name, item, status) in read_rows(file, columns=columns, skip_lines=2):
        path = inside_path(name, file, line)
        if status not in _ROLES or len(path.parts) < 3:
            rule = "must name an image below img, its item, and one of train, query and gallery"
            raise line_error(file, line, rule, f"{name} {item} {status}")
        rows.append((path, item, _ROLES[status]))
    return rows


def _check_stated_count(file: Path, num_rows: int) -> list[str]:
    first = (read_lines(file) or [""])[0].strip()
    stated = whole_number(first, file, 1)
    if stated == num_rows:
        return []
    return [f"{_LIST} must list the {stated:,} images of its first line, found {num_rows:,}."]


def _find_images(search: RawSearch, paths: list[PurePosixPath]) -> Path:
    """The folder that stands for the first part (`img`) of the listed paths."""
    # `img` alone is a name that other folders have too, so one of its parts must be in it.
    parts = sorted({path.parts[1] for path in paths})
    for name in _IMAGE_FOLDERS:
        for part in parts:
            folder = search.find(f"{name}/{part}")
            if folder is not None:
                return folder / name
    return search.require(f"img/{parts[0]}" if parts else "img") / "img"
