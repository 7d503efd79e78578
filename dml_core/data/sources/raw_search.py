"""Finds a dataset's files at data.raw, whether still packed, unpacked, or one level too deep."""

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
    """What a dataset is called, who publishes it, and how its archives are named."""

    name: str
    """The value of data.name."""
    title: str
    """The official name and the publisher, enough to find the download."""
    download: str
    """The files to download, as a user sees them on the publisher's page."""
    archive_stems: tuple[str, ...] = ()
    """Lower-case patterns of the archives' names without suffix, the wanted ones first."""
    in_parts: bool = False
    """Whether the download is several files that lie side by side."""

    def advice(self) -> str:
        """Returns what to download and which key points to it."""
        return (
            f"Download {self.download} of {self.title}, and set data.raw to the "
            f"{'folder with these files' if self.in_parts else 'archive or to its folder'}."
        )

    def rank_archive(self, file_name: str) -> int | None:
        """Returns how early the archive is to be unpacked; None if it is not of this dataset."""
        stem = archive_stem(file_name)
        if stem is None:
            return None
        matches = (i for i, p in enumerate(self.archive_stems) if fnmatch(stem.lower(), p))
        return next(matches, None)


def archive_stem(file_name: str) -> str | None:
    """Returns the name without its archive suffix, or None if it is not an archive's name."""
    for suffix in SUFFIXES:
        if file_name.lower().endswith(suffix) and len(file_name) > len(suffix):
            return file_name[: -len(suffix)]
    return None


SEARCH_DEPTH = 3
UNPACKED_SUFFIX = ".unpacked"


class RawSearch:
    """Looks for files and folders at data.raw, and unpacks archives only when it must.

    `data.raw` may be an archive, a folder with archives, the unpacked folder, or the folder
    around it. What a user unpacked by hand is preferred to what an archive holds.
    """

    def __init__(self, config: DownloadedData, distribution: Distribution) -> None:
        self._config = config
        self._distribution = distribution
        self.raw = Path(config.raw).expanduser()
        if not self.raw.exists():
            raise DatasetError(self._missing("there is no such file or folder."))
        self._starts, self._archives = self._survey()

    def find(self, *entries: str) -> Path | None:
        """Returns the nearest folder that holds all entries, or None.

        Args:
            entries: names of files or folders, or relative paths such as `img/WOMEN`.
        """
        folder = self._look(entries)
        while folder is None and self._unpack_next():
            folder = self._look(entries)
        return folder

    def require(self, *entries: str) -> Path:
        """Returns the nearest folder that holds all entries; a DatasetError if there is none."""
        folder = self.find(*entries)
        if folder is None:
            raise DatasetError(self._explain(entries))
        return folder

    def content_folder(self) -> Path:
        """Returns data.raw with its subfolders, or what the archive at or in it unpacks to."""
        needs_unpacking = not self._starts or not _subfolders(self._starts[0])
        if needs_unpacking:
            self._unpack_next()
        return self._starts[-1]

    def _survey(self) -> tuple[list[Path], list[Path] | None]:
        """Returns the folders to search, and the archives where data.raw is one itself."""
        if self.raw.is_dir():
            return [self.raw], None
        if archive_stem(self.raw.name) is None:
            raise DatasetError(
                f"data.raw must be a folder or an archive ({', '.join(SUFFIXES)}), for it "
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
        # Downloads are often renamed; a lone archive is worth a look whatever its name.
        lone = [folder / name for name in _file_names(folder) if archive_stem(name)]
        return lone if len(lone) == 1 else []

    def _unpack_next(self) -> bool:
        """Unpacks one more archive; False if there is none left."""
        # Looked for only now, because it takes a look at every file of a large dataset.
        if self._archives is None:
            self._archives = self._archives_in(self.raw)
        if not self._archives:
            return False
        archive = self._archives.pop(0)
        folder = extract_archive(archive, self._target_of(archive))
        self._starts.append(folder)
        # One level of archives within archives, because an archive can hold itself.
        is_nested = any(part.endswith(UNPACKED_SUFFIX) for part in archive.parent.parts)
        if self._distribution.in_parts and not is_nested:
            self._archives.extend(self._archives_in(folder))
        return True

    def _target_of(self, archive: Path) -> Path:
        name = f"{archive_stem(archive.name)}{UNPACKED_SUFFIX}"
        # Outside of the project nothing hides it from DVC, which hashes all that lies at data.raw.
        is_ours = archive.resolve().is_relative_to(Path.cwd())
        if is_ours and os.access(archive.parent, os.W_OK):
            return archive.parent / name
        # A dataset's alias never begins with a dot, so this folder is nobody's dataset.
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
                        f"{', '.join(missing)} must be there too, but cannot be found. "
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
    """Returns the innermost folder around all the folders, links resolved."""
    return Path(os.path.commonpath([folder.resolve() for folder in folders]))


def _folders_below(start: Path, *, depth: int) -> Iterator[Path]:
    """The folder itself, then its subfolders level by level, in order of name."""
    level = [start]
    for _ in range(depth):
        yield from level
        level = [child for folder in level for child in _subfolders(folder)]
    yield from level


def _subfolders(folder: Path) -> list[Path]:
    # What an archive was unpacked to is reached through extract_archive alone, because only
    # that knows whether the unpacking was finished.
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
        # A closed folder beside the dataset is none of our business; if it is the dataset's
        # own, the search ends in an error that names what was not found.
        return []
