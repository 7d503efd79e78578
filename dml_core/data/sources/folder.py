"""Lists a user's own images: a tree with one folder per class, or a table."""

import logging
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from dml_core.config.data import FolderData
from dml_core.data.records import DatasetError, ImageRecord, SourceListing, raise_for
from dml_core.data.sources.raw_search import UNPACKED_SUFFIX, Distribution, RawSearch
from dml_core.data.sources.tables import list_table

FOLDER = Distribution(
    name="folder",
    title="your own dataset",
    download="or copy the images",
    archive_stems=(),
)
IMAGE_SUFFIXES = frozenset(
    [".bmp", ".gif", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"]
)
_logger = logging.getLogger(__name__)


def list_folder(config: FolderData) -> SourceListing:
    """Returns the images of a table, or of a tree with one folder per class.

    In a tree the first `data.class_levels` folders name the class, and images may be deeper. Hidden
    files are skipped; other files are ignored and counted in the log.

    Raises:
        DatasetError: with all problems, if images or the table cannot be used.
    """
    search = RawSearch(config, FOLDER)
    if config.table:
        return list_table(config, _find_table(config, search))
    if config.continuous_labels:
        raise DatasetError(
            "data.continuous_labels names columns of a table, so data.table must name one. "
            f"Got {', '.join(config.continuous_labels)} and no table. Set data.table."
        )
    root = _skip_lone_folders(search.content_folder().resolve())
    records = _read_tree(root, shown=search.raw, levels=config.class_levels)
    return SourceListing(records=records, root=root)


def _find_table(config: FolderData, search: RawSearch) -> Path:
    table = Path(config.table)
    if table.is_absolute() or ".." in table.parts:
        raise DatasetError(
            f"data.table must be relative to data.raw ({search.raw}) and stay within it. "
            f"Got {config.table!r}. Move the table beside the images."
        )
    return search.require(config.table) / config.table


def _skip_lone_folders(root: Path) -> Path:
    """Returns the folder with the classes, below one or more lone folders."""
    while True:
        folders = [root / name for name in _names(root, folders=True)]
        images = [name for name in _names(root, folders=False) if _is_image(name)]
        if len(folders) != 1 or images or not _names(folders[0], folders=True):
            return root
        root = folders[0]


def _read_tree(root: Path, *, shown: Path, levels: int) -> list[ImageRecord]:
    files = sorted(_walk(root))
    images = [path for path in files if _is_image(path)]
    _log_ignored([path for path in files if not _is_image(path)], root)
    stray = [path for path in images if path.count("/") < levels]
    tree = "/".join(["<group>"] * (levels - 1) + ["<class>", "<image>"])
    unnamed = [path for path in images if not path.isascii() and not _is_utf8(path)]
    nothing = [] if images else ["it must hold images in one folder per class, found none."]
    raise_for(
        f"dataset 'folder' at {shown}",
        [
            nothing,
            [f"{path} is not in a class folder; move it into one." for path in stray],
            [f"{path!r} has a name that is not UTF-8; rename it." for path in unnamed],
        ],
        advice=f"The tree must be {tree}, with images named {_suffix_list()}; or set "
        "data.table to a CSV or Parquet with paths and classes.",
    )
    return [
        ImageRecord(
            path=path,
            class_name="/".join(path.split("/", levels)[:levels]),
            role="undecided",
            file=root / path,
        )
        for path in images
    ]


def _walk(root: Path) -> Iterator[str]:
    """Yields the relative paths of all files that are not hidden."""
    for folder, subfolders, names in os.walk(root, onerror=_raise_unreadable):
        subfolders[:] = [name for name in subfolders if not _is_hidden(name)]
        for name in subfolders:
            if os.path.islink(os.path.join(folder, name)):
                raise DatasetError(
                    f"{os.path.join(folder, name)} is a link to a folder. Links are not followed, "
                    "because they may leave the dataset or form cycles. Copy or mount the folder."
                )
        base = Path(folder).relative_to(root)
        yield from ((base / name).as_posix() for name in names if not _is_hidden(name))


def _raise_unreadable(error: OSError) -> None:
    raise DatasetError(
        f"{error.filename} cannot be read: {error.strerror}. Every folder of the dataset must be "
        "readable, because classes would be missing otherwise. Check its permissions."
    ) from error


def _log_ignored(paths: list[str], root: Path) -> None:
    if paths:
        kinds = Counter(Path(path).suffix.lower() or "no suffix" for path in paths)
        listed = ", ".join(f"{kind} ({count:,})" for kind, count in kinds.most_common(5))
        _logger.warning("%s: ignored %s file(s) that are not images: %s", root, len(paths), listed)


def _names(folder: Path, *, folders: bool) -> list[str]:
    with os.scandir(folder) as entries:
        return [e.name for e in entries if e.is_dir() == folders and not _is_hidden(e.name)]


def _is_hidden(name: str) -> bool:
    return name.startswith((".", "__MACOSX")) or name.endswith(UNPACKED_SUFFIX)


def _is_image(path: str) -> bool:
    return os.path.splitext(path)[1].lower() in IMAGE_SUFFIXES


def _is_utf8(text: str) -> bool:
    # Python represents non-UTF-8 bytes of a name as lone surrogates.
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _suffix_list() -> str:
    return ", ".join(f"*{suffix}" for suffix in sorted(IMAGE_SUFFIXES))
