"""Decides what a path holds: class folders, an archive, a table, shards or a saved dataset."""

import errno
import os
import stat
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from dml_core.asking.converting import are_few_stray, is_shard
from dml_core.asking.pictures import Progress
from dml_core.asking.saved_datasets import has_picture_column
from dml_core.config.problems import suggest
from dml_core.data.archives import SUFFIXES
from dml_core.data.records import DatasetError
from dml_core.data.sources.raw_search import UNPACKED_SUFFIX, archive_stem

Kind = Literal["classes", "splits", "table", "archive", "shards", "arrow", "parquet"]

TABLE_SUFFIXES = (".csv", ".parquet")
UNLISTED_SUFFIXES = frozenset(
    [".heic", ".heif", ".avif", ".jxl", ".jp2", ".jfif", ".jpe", ".dng", ".cr2", ".nef", ".arw"]
)
"""Images that class folders are not read for."""
SPLIT_FOLDERS = frozenset(["train", "training", "test", "testing", "val", "valid", "validation"])
PLAIN_FOLDERS = frozenset(["images", "image", "img", "imgs", "photos", "pictures", "data", "files"])
"""Names of folders that hold images without being a class, beside a table."""


def convert_hint(suffix: str) -> str:
    """Returns how to convert images to JPEG."""
    return f"convert them to JPEG, for example: magick mogrify -format jpg *{suffix}"


@dataclass(frozen=True)
class PathContent:
    """What a path holds, and the files that say so."""

    kind: Kind
    path: Path
    """The folder, archive or table."""
    files: tuple[Path, ...] = ()
    """The shards, Parquet files, or split folders, in order."""
    notes: tuple[str, ...] = ()
    unlisted: Counter[str] = field(default_factory=Counter)
    """Number of images that are not listed, by suffix."""
    stray: tuple[str, ...] = ()
    """The few images beside the class folders, which are left out."""


@dataclass
class Survey:
    """The content of a folder by kind, from one walk that opens no file."""

    root: Path
    """The first folder with more than a lone folder in it."""
    is_below: bool
    """Whether the root is below the folder that was given."""
    loose: list[str] = field(default_factory=list)
    """Images directly in the root."""
    tables: list[str] = field(default_factory=list)
    """Tables directly in the root."""
    archives: list[str] = field(default_factory=list)
    """All archives, relative to the root."""
    folders: Counter[str] = field(default_factory=Counter)
    """Number of images below each folder of the root."""
    parquet: list[str] = field(default_factory=list)
    """All Parquet files, relative to the root."""
    unlisted: Counter[str] = field(default_factory=Counter)
    is_saved: bool = False
    """Whether `save_to_disk` of the package datasets wrote the root."""

    @property
    def class_folders(self) -> list[str]:
        """Folders of the root with images below them."""
        return sorted(name for name, number in self.folders.items() if number)


def find_content(path: str, on_progress: Callable[[str], None]) -> PathContent:
    """Returns what a path holds.

    Raises:
        DatasetError: if it does not exist, cannot be read, or holds no images in classes.
    """
    source = Path(path).expanduser()
    mode = _mode_of(source)
    if stat.S_ISDIR(mode):
        return find_in_folder(source, on_progress)
    if not stat.S_ISREG(mode):
        raise DatasetError(f"{path} must be a file or a folder. Found a pipe, socket or device.")
    if source.suffix.lower() == ".parquet" and has_picture_column(source):
        return PathContent("parquet", source, files=(source,))
    if source.suffix.lower() in TABLE_SUFFIXES:
        return PathContent("table", source)
    if archive_stem(source.name) is not None:
        return _archive_or_shard(source)
    raise DatasetError(
        f"{path} must be a folder with one folder per class, an archive of one "
        f"({', '.join(SUFFIXES)}), or a table ({', '.join(TABLE_SUFFIXES)}). Found a file "
        f"{source.name!r}.{_advise_file(source)}"
    )


def find_in_folder(folder: Path, on_progress: Callable[[str], None]) -> PathContent:
    """Returns what a folder holds; see `find_content`."""
    survey = survey_folder(folder, on_progress)
    root, names = survey.root, survey.class_folders
    if survey.is_saved:
        return PathContent("arrow", root)
    if not names and not survey.loose:
        return _find_without_images(folder, survey)
    lowered = {name.lower() for name in names}
    is_plain = len(names) < 2 or lowered <= SPLIT_FOLDERS | PLAIN_FOLDERS
    if is_plain and len(survey.tables) == 1:
        return PathContent("table", root / survey.tables[0], unlisted=survey.unlisted)
    if names and lowered <= SPLIT_FOLDERS:
        files = tuple(root / name for name in names)
        stray = _find_stray(survey)
        return PathContent("splits", root, files=files, unlisted=survey.unlisted, stray=stray)
    if not names:
        raise _no_classes(folder, survey)
    notes = tuple(
        f"{table} beside the class folders is not used; to use it, give its path instead"
        for table in survey.tables
    )
    stray = _find_stray(survey)
    place = root if stray else folder
    return PathContent("classes", place, notes=notes, unlisted=survey.unlisted, stray=stray)


def _find_stray(survey: Survey) -> tuple[str, ...]:
    """Returns the images beside the class folders; raises DatasetError if they are many."""
    number, inside = len(survey.loose), sum(survey.folders.values())
    if are_few_stray(number, number + inside):
        return tuple(sorted(survey.loose))
    raise DatasetError(
        f"{survey.root} must hold its images in one folder per class. Found {number:,} images "
        f"beside {len(survey.class_folders):,} folders with {inside:,}, such as "
        f"{min(survey.loose)}. Move them into class folders or elsewhere."
    )


def survey_folder(folder: Path, on_progress: Callable[[str], None]) -> Survey:
    """Returns the content of a folder, from one walk that opens no file."""
    from dml_core.data.sources.folder import IMAGE_SUFFIXES

    root = _skip_lone_folders(folder)
    survey = Survey(root, is_below=root != folder)
    progress = Progress(on_progress, f"listing files of {folder}")
    waiting = [(str(root), "")]
    while waiting:
        place, top = waiting.pop()
        for entry in _visible(place):
            if _is_folder(entry):
                waiting.append((entry.path, top or entry.name))
                continue
            suffix = os.path.splitext(entry.name)[1].lower()
            progress.step()
            if suffix in IMAGE_SUFFIXES:
                survey.folders[top] += 1
                if not top:
                    survey.loose.append(entry.name)
            elif suffix in UNLISTED_SUFFIXES:
                survey.unlisted[suffix] += 1
            else:
                _sort_other(survey, entry, top, suffix)
    survey.folders.pop("", None)
    return survey


def _sort_other(survey: Survey, entry: "os.DirEntry[str]", top: str, suffix: str) -> None:
    if suffix == ".parquet":
        survey.parquet.append(os.path.relpath(entry.path, survey.root))
    if archive_stem(entry.name) is not None:
        survey.archives.append(os.path.relpath(entry.path, survey.root))
    if not top and suffix in TABLE_SUFFIXES:
        survey.tables.append(entry.name)
    if not top and (entry.name == "dataset_dict.json" or suffix == ".arrow"):
        survey.is_saved = True


def _mode_of(source: Path) -> int:
    try:
        return os.stat(source).st_mode
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise DatasetError(
                f"{source} must lead to a file or folder. Found a link that leads back to itself. "
                "Give the path of the images themselves."
            ) from error
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            raise DatasetError(f"there is no file or folder {source}.{_nearest(source)}") from error
        raise DatasetError(f"{source} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise DatasetError(f"{str(source)!r} is not a path: {error}.") from error


def _nearest(source: Path) -> str:
    try:
        return suggest(source.name, os.listdir(source.parent))
    except OSError:
        return f" There is no folder {source.parent} either."


def _advise_file(source: Path) -> str:
    from dml_core.data.sources.folder import IMAGE_SUFFIXES

    suffix = source.suffix.lower()
    if suffix in IMAGE_SUFFIXES | UNLISTED_SUFFIXES:
        return " That is one image; give the folder that holds the class folders."
    if suffix in (".rar", ".7z", ".xz", ".zst"):
        return " Unpack it, and give the folder."
    if suffix in (".xlsx", ".xls", ".ods", ".tsv", ".txt", ".json", ".jsonl"):
        return " Save it as CSV with columns for the path and the class."
    return ""


def _visible(folder: str) -> list["os.DirEntry[str]"]:
    try:
        with os.scandir(folder) as entries:
            return sorted((e for e in entries if not _is_hidden(e.name)), key=lambda e: e.name)
    except OSError as error:
        raise DatasetError(
            f"{folder} cannot be read: {error.strerror}. Every folder must be readable, because "
            "classes would be missing otherwise. Check its permissions."
        ) from error


def _is_hidden(name: str) -> bool:
    # As the reader of class folders does.
    return name.startswith((".", "__MACOSX")) or name.endswith(UNPACKED_SUFFIX)


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    if not entry.is_symlink():
        return entry.is_dir()
    try:
        is_dir = entry.is_dir()
    except OSError as error:
        raise DatasetError(
            f"{entry.path} is a link that leads back to itself. Remove it."
        ) from error
    if is_dir:
        raise DatasetError(
            f"{entry.path} is a link to a folder. Links are not followed, because they may leave "
            "the dataset or form cycles. Copy or mount the folder."
        )
    return False


def _skip_lone_folders(folder: Path) -> Path:
    """Returns the folder below lone folders, such as the one at the top of many archives."""
    while True:
        entries = _visible(str(folder))
        if len(entries) != 1 or not _is_folder(entries[0]):
            return folder
        folder = folder / entries[0].name


def _find_without_images(folder: Path, survey: Survey) -> PathContent:
    archives = [survey.root / name for name in sorted(survey.archives)]
    tars = [file for file in archives if file.suffix.lower() != ".zip"]
    if tars and is_shard(tars[0]):
        return PathContent("shards", survey.root, files=tuple(tars))
    if len(archives) == 1:
        return PathContent("archive", archives[0])
    parquet = [survey.root / name for name in sorted(survey.parquet)]
    if parquet and has_picture_column(parquet[0]):
        return PathContent("parquet", survey.root, files=tuple(parquet))
    if len(survey.tables) == 1:
        return PathContent("table", survey.root / survey.tables[0], unlisted=survey.unlisted)
    if survey.unlisted:
        suffix, _ = survey.unlisted.most_common(1)[0]
        raise DatasetError(
            f"{folder} must hold images that can be read. Found only "
            f"{list_unlisted(survey.unlisted)}: {convert_hint(suffix)}"
        )
    if len(archives) > 1:
        raise DatasetError(
            f"{folder} holds {len(archives)} archives and no images. Give the path of one, or "
            "unpack them."
        )
    raise DatasetError(
        f"{folder} must hold images in one folder per class. Found no image in it or below it."
    )


def list_unlisted(unlisted: Counter[str]) -> str:
    """Returns the number of images by suffix, most frequent first."""
    return ", ".join(f"{number:,} {suffix}" for suffix, number in unlisted.most_common())


def _no_classes(folder: Path, survey: Survey) -> DatasetError:
    number = len(survey.loose)
    if survey.is_below:
        return DatasetError(
            f"{folder} must hold one folder per class. Found one class, {survey.root.name!r}, with "
            f"{number:,} images. Add folders for other classes, or a CSV with the columns path and "
            "class."
        )
    advice = (
        f"Give the path of one of its tables: {', '.join(survey.tables)}."
        if survey.tables
        else "Move the images of each class into a folder, or add a CSV with the columns path and "
        "class."
    )
    return DatasetError(
        f"{folder} must hold one folder per class. Found {number:,} images without class folders "
        f"and {len(survey.tables) or 'no'} table{'s' if len(survey.tables) != 1 else ''}. {advice}"
    )


def _archive_or_shard(archive: Path) -> PathContent:
    if not archive.name.lower().endswith(".zip") and is_shard(archive):
        return PathContent("shards", archive, files=(archive,))
    return PathContent("archive", archive)
