"""Finds the files of a dataset at data.raw: packed, unpacked, or in subfolders."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from dml_core.config.data import DownloadedData
from dml_core.data.archives import SUFFIXES, extract_archive
from dml_core.data.records import DatasetError


@dataclass(frozen=True)
class Distribution:
    """The name of a dataset, its publisher, and the names of its archives."""

    name: str
    """The value of data.name."""
    title: str
    """The official name and the publisher, to find the download."""
    download: str
    """The files to download, as named on the publisher's page."""
    archive_stems: tuple[str, ...] = ()
    """Lower-case patterns of archive names without suffix, in order of preference."""
    in_parts: bool = False
    """Whether the download consists of several files in one folder."""

    def advice(self) -> str:
        """Returns the files to download and the key to set."""
        return (
            f"Download {self.download} of {self.title}, and set data.raw to the "
            f"{'folder with these files' if self.in_parts else 'archive or to its folder'}."
        )

    def rank_archive(self, file_name: str) -> int | None:
        """Returns the order in which to unpack the archive; None for another dataset's archive."""
        stem = archive_stem(file_name)
        if stem is None:
            return None
        matches = (i for i, p in enumerate(self.archive_stems) if fnmatch(stem.lower(), p))
        return next(matches, None)


def archive_stem(file_name: str) -> str | None:
    """Returns the name without its archive suffix, or None without such a suffix."""
    for suffix in SUFFIXES:
        if file_name.lower().endswith(suffix) and len(file_name) > len(suffix):
            return file_name[: -len(suffix)]
    return None


SEARCH_DEPTH = 3
UNPACKED_SUFFIX = ".unpacked"


class RawSearch:
    """Finds files and folders at data.raw, and unpacks archives only if needed.

    `data.raw` may be an archive, a folder with archives, the unpacked folder, or its parent. Files
    that the user unpacked take precedence over archives.
    """

    def __init__(self, config: DownloadedData, distribution: Distribution) -> None:
        self._config = config
        self._distribution = distribution
        self.raw = Path(config.raw).expanduser()
        if not self.raw.exists():
            raise DatasetError(self._missing("there is no such file or folder."))
        self._starts, self._archives = self._survey()

    def find(self, *entries: str) -> Path | None:
        """Returns the nearest folder that contains all entries, or None.

        Args:
            entries: names of files or folders, or relative paths such as `img/WOMEN`.
        """
        folder = self._look(entries)
        while folder is None and self._unpack_next():
            folder = self._look(entries)
        return folder

    def require(self, *entries: str) -> Path:
        """Returns the nearest folder that contains all entries; raises DatasetError without one."""
        folder = self.find(*entries)
        if folder is None:
            raise DatasetError(self._explain(entries))
        return folder

    def content_folder(self) -> Path:
        """Returns data.raw if it has subfolders, or else the folder of its unpacked archive."""
        needs_unpacking = not self._starts or not _subfolders(self._starts[0])
        if needs_unpacking:
            self._unpack_next()
        return self._starts[-1]

    def _survey(self) -> tuple[list[Path], list[Path] | None]:
        """Returns the folders to search, and the archives if data.raw is an archive."""
        if self.raw.is_dir():
            return [self.raw], None
        if archive_stem(self.raw.name) is None:
            raise DatasetError(
                f"data.raw must be a folder or an archive ({', '.join(SUFFIXES)}) that "
                f"holds the images of dataset {self._distribution.name!r}. Got {self.raw}. "
                f"{self._distribution.advice()}"
            )
        if not self._distribution.in_parts:
            return [], [self.raw]
        others = self._archives_in(self.raw.parent)
        return [self.raw.parent], [self.raw, *(o for o in others if o != self.raw)]

    def _archives_in(self, folder: Path) -> list[Path]:
        ranked = []
        for place in _folders_below(folder, depth=2):
            for name in _file_names(place):
                rank = self._distribution.rank_archive(name)
                if rank is not None:
                    ranked.append((rank, place / name))
        if ranked:
            return [archive for _, archive in sorted(ranked)]
        # Downloads are often renamed, so a single archive is used whatever its name.
        lone = [folder / name for name in _file_names(folder) if archive_stem(name)]
        return lone if len(lone) == 1 else []

    def _unpack_next(self) -> bool:
        """Unpacks the next archive; returns False if there is none."""
        # Deferred, because it scans all files of a large dataset.
        if self._archives is None:
            self._archives = self._archives_in(self.raw)
        if not self._archives:
            return False
        archive = self._archives.pop(0)
        folder = extract_archive(archive, self._target_of(archive))
        self._starts.append(folder)
        # Only one level of nested archives, because an archive can contain itself.
        is_nested = any(part.endswith(UNPACKED_SUFFIX) for part in archive.parent.parts)
        if self._distribution.in_parts and not is_nested:
            self._archives.extend(self._archives_in(folder))
        return True

    def _target_of(self, archive: Path) -> Path:
        name = f"{archive_stem(archive.name)}{UNPACKED_SUFFIX}"
        # Outside the project it is not ignored by DVC, which hashes everything at data.raw.
        is_ours = archive.resolve().is_relative_to(Path.cwd())
        if is_ours and os.access(archive.parent, os.W_OK):
            return archive.parent / name
        # An alias never starts with a dot, so this is not the folder of a dataset.
        return Path(self._config.prepared_root) / ".unpacked" / self._config.folder_name / name

    def _look(self, entries: Sequence[str]) -> Path | None:
        for start in self._starts:
            for folder in _folders_below(start, depth=SEARCH_DEPTH):
                if all((folder / entry).exists() for entry in entries):
                    return folder
        return None

    def _explain(self, entries: Sequence[str]) -> str:
        for start in self._starts:
            for folder in _folders_below(start, depth=SEARCH_DEPTH):
                missing = [entry for entry in entries if not (folder / entry).exists()]
                if len(missing) < len(entries):
                    return (
                        f"dataset {self._distribution.name!r} is partial at {folder}: "
                        f"{', '.join(missing)} must be there too, but is missing. "
                        f"Unpack the archive again. {self._distribution.advice()}"
                    )
        return self._missing(
            f"{', '.join(entries)} cannot be found there, nor up to {SEARCH_DEPTH} folders "
            "below, nor in an archive."
        )

    def _missing(self, what: str) -> str:
        name, advice = self._distribution.name, self._distribution.advice()
        return f"dataset {name!r} is missing at {self.raw}: {what} {advice}"


def common_root(folders: Sequence[Path]) -> Path:
    """Returns the innermost common parent of the folders, links resolved."""
    return Path(os.path.commonpath([folder.resolve() for folder in folders]))


def _folders_below(start: Path, *, depth: int) -> Iterator[Path]:
    """Yields the folder, then its subfolders level by level, sorted by name."""
    level = [start]
    for _ in range(depth):
        yield from level
        level = [child for folder in level for child in _subfolders(folder)]
    yield from level


def _subfolders(folder: Path) -> list[Path]:
    # Unpacked archives are only used through extract_archive, which checks that they are
    # complete.
    return [
        folder / entry.name
        for entry in _entries(folder)
        if not entry.name.startswith((".", "__MACOSX"))
        and UNPACKED_SUFFIX not in entry.name
        and entry.is_dir()
    ]


def _file_names(folder: Path) -> list[str]:
    return [entry.name for entry in _entries(folder) if entry.is_file()]


def _entries(folder: Path) -> list["os.DirEntry[str]"]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except PermissionError:
        # An unreadable folder beside the dataset does not matter; if it belongs to the dataset,
        # the search fails with an error that names the missing files.
        return []
