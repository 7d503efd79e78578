"""Unpacks a downloaded archive into a folder and rejects malicious members."""

import bz2
import gzip
import hashlib
import io
import json
import lzma
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, cast

from dml_core.data.atomic_folder import folder_lock, replaced_folder
from dml_core.data.records import DatasetError

MAX_MEMBERS = 5_000_000
MAX_RATIO = 100
"""Images hardly compress; the archives of the benchmarks grow less than threefold."""
SMALL_BYTES = 100 * 2**20
"""Below this size the ratio is not checked."""
_BLOCK = 2**20


class SizeBudget:
    """Counts the unpacked members and bytes, and stops a decompression bomb."""

    def __init__(self, archive: Path, place: Path) -> None:
        self._archive = archive
        self._by_ratio = max(SMALL_BYTES, MAX_RATIO * archive.stat().st_size)
        self._by_disk = shutil.disk_usage(place).free
        self._members = 0
        self._bytes = 0

    def count_member(self) -> None:
        """Counts one member."""
        self._members += 1
        if self._members > MAX_MEMBERS:
            raise DatasetError(f"archive {self._archive} has more than {MAX_MEMBERS} members.")

    def count_bytes(self, number: int) -> None:
        """Counts unpacked bytes."""
        self._bytes += number
        if self._bytes > self._by_ratio:
            raise DatasetError(
                f"archive {self._archive} unpacks to more than {self._by_ratio} bytes, which is "
                f"{MAX_RATIO} times its own size or {SMALL_BYTES} bytes, like a decompression "
                "bomb. If you trust it, unpack it yourself and set data.raw to the folder."
            )
        if self._bytes > self._by_disk:
            raise DatasetError(
                f"archive {self._archive} unpacks to more than the {self._by_disk} bytes that "
                "are free on the disk. Free some space, or unpack it on another disk."
            )


class ArchiveFolder:
    """The target folder of an archive; rejects members that would leave it."""

    def __init__(self, archive: Path, place: Path) -> None:
        self._archive = archive
        self.place = place
        self._links: set[PurePosixPath] = set()

    def add_folder(self, name: str) -> None:
        """Creates a folder."""
        self._place_of(name).mkdir(parents=True, exist_ok=True)

    def add_file(
        self, name: str, source: IO[bytes], *, size: int, budget: SizeBudget | None = None
    ) -> None:
        """Writes a file from a stream; of two members with the same name the later one stays."""
        written = 0
        with open(self._free_place(name), "xb") as stream:
            while block := source.read(_BLOCK):
                if budget is not None:
                    budget.count_bytes(len(block))
                written += stream.write(block)
        if written != size:
            raise EOFError(f"member {name!r} has {written} of {size} bytes")

    def add_copy(self, name: str, original: str, *, budget: SizeBudget) -> None:
        """Writes a hard link as a copy of the member it links to, which must precede it."""
        source = self._place_of(original, linked_by=name)
        if source.is_symlink() or not source.is_file():
            raise self.refusal(name, f"links to {original!r}, which is not a file of the archive")
        budget.count_bytes(source.stat().st_size)
        if source != self._place_of(name):
            shutil.copyfile(source, self._free_place(name))

    def add_link(self, name: str, points_to: str) -> None:
        """Creates a symbolic link that stays inside the folder."""
        place = self._free_place(name)
        inside = self.place.joinpath(self._checked(name).parent, points_to)
        if os.path.isabs(points_to) or not Path(os.path.normpath(inside)).is_relative_to(
            self.place
        ):
            raise self.refusal(name, f"links to {points_to!r}, outside of the target folder")
        place.symlink_to(points_to)
        self._links.add(self._checked(name))

    def check_links_stay_inside(self) -> None:
        """Rejects links that leave the folder through other links."""
        root = os.path.realpath(self.place)
        for link in sorted(self._links):
            if not Path(os.path.realpath(self.place / link)).is_relative_to(root):
                raise self.refusal(str(link), "links outside of the target folder")

    def refusal(self, name: str, reason: str) -> DatasetError:
        """Returns the error for a rejected member."""
        return DatasetError(
            f"archive {self._archive} has a member {name!r} that {reason}. The official "
            "datasets have no such member, so nothing was unpacked. Download it again from its "
            "publisher."
        )

    def _free_place(self, name: str) -> Path:
        place = self._place_of(name)
        if place == self.place or place.is_dir():
            raise self.refusal(name, "would replace a folder")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        return place

    def _place_of(self, name: str, *, linked_by: str | None = None) -> Path:
        path = self._checked(name, linked_by=linked_by)
        # A file written through a link would not be where its name says.
        through = self._links.intersection((path, *path.parents))
        if through:
            raise self.refusal(name, f"would be written through the link {str(through.pop())!r}")
        return self.place / path

    def _checked(self, name: str, *, linked_by: str | None = None) -> PurePosixPath:
        path = PurePosixPath(name.replace("\\", "/"))
        member = name if linked_by is None else linked_by
        if path.is_absolute() or PureWindowsPath(name).drive:
            raise self.refusal(member, f"has the absolute path {name!r}")
        if ".." in path.parts:
            raise self.refusal(member, f"leaves the target folder through '..' in {name!r}")
        if "\x00" in name:
            raise self.refusal(member, "has a null byte in its name")
        return path


_TAR_BLOCK = 512
_KEPT = 64 * 1024


class CountedStream(io.RawIOBase):
    """Counts the decompressed bytes and keeps the most recent ones."""

    def __init__(self, source: IO[bytes], budget: SizeBudget) -> None:
        self._source = source
        self._budget = budget
        self._position = 0
        self._last = b""

    def read(self, size: int = -1) -> bytes:
        """Returns up to `size` bytes of the stream."""
        data = self._source.read(size)
        self._budget.count_bytes(len(data))
        self._position += len(data)
        self._last = (self._last + data)[-_KEPT:]
        return data

    def block_at(self, offset: int) -> bytes:
        """Returns the block of 512 bytes at a recently read offset."""
        start = offset - (self._position - len(self._last))
        return self._last[start : start + _TAR_BLOCK] if start >= 0 else b""


def extract_tar(archive: Path, folder: ArchiveFolder, budget: SizeBudget) -> None:
    """Writes all members to the folder; raises tarfile.ReadError for a truncated archive."""
    # As a stream, so that the budget also bounds headers, which tarfile keeps in memory.
    with _decompressed(archive) as source:
        stream = CountedStream(source, budget)
        with tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r|") as tar:
            for member in tar:
                budget.count_member()
                _extract_member(tar, member, folder, budget)
            # tarfile treats a broken header as the end; the real end is a block of zeros.
            if stream.block_at(tar.offset) != bytes(_TAR_BLOCK):
                raise tarfile.ReadError(f"no end mark at byte {tar.offset}")
        while stream.read(2**20):
            # Reading to the end makes gzip and bzip2 verify their checksums.
            pass


def _decompressed(archive: Path) -> IO[bytes]:
    with archive.open("rb") as stream:
        magic = stream.read(3)
    if magic[:2] == b"\x1f\x8b":
        return cast("IO[bytes]", gzip.open(archive, "rb"))
    if magic == b"BZh":
        return cast("IO[bytes]", bz2.open(archive, "rb"))
    return archive.open("rb")


def _extract_member(
    tar: tarfile.TarFile, member: tarfile.TarInfo, folder: ArchiveFolder, budget: SizeBudget
) -> None:
    if member.isdir():
        folder.add_folder(member.name)
    elif member.issym():
        folder.add_link(member.name, member.linkname)
    elif member.islnk():
        folder.add_copy(member.name, member.linkname, budget=budget)
    elif member.isreg() and (content := tar.extractfile(member)) is not None:
        # The stream does not count the holes of a sparse file.
        uncounted = budget if member.issparse() else None
        folder.add_file(member.name, content, size=member.size, budget=uncounted)
    else:
        raise folder.refusal(member.name, "is a device, pipe or other special file")


_ENCRYPTED = 0x1


def extract_zip(archive: Path, folder: ArchiveFolder, budget: SizeBudget) -> None:
    """Writes all members to the folder; raises zipfile.BadZipFile for a damaged archive."""
    with zipfile.ZipFile(archive) as source:
        for member in source.infolist():
            budget.count_member()
            _check_member(member, folder)
            if member.is_dir():
                folder.add_folder(member.filename)
                continue
            with source.open(member) as content:
                folder.add_file(member.filename, content, size=member.file_size, budget=budget)


def _check_member(member: zipfile.ZipInfo, folder: ArchiveFolder) -> None:
    # The upper half holds the Unix mode; it is zero in archives from other systems.
    kind = stat.S_IFMT(member.external_attr >> 16)
    if kind == stat.S_IFLNK:
        raise folder.refusal(member.filename, "is a link, which is not supported in zip files")
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise folder.refusal(member.filename, "is a device, pipe or other special file")
    if member.flag_bits & _ENCRYPTED:
        raise folder.refusal(member.filename, "is encrypted")


SUFFIXES = (".tgz", ".tar.gz", ".tar.bz2", ".tar", ".zip")
MARKER = ".extracted_from.json"


def extract_archive(archive: Path, target: Path) -> Path:
    """Unpacks the archive into the target folder and returns the folder.

    The content is unpacked beside the target and renamed at the end, so an existing target is
    complete. A target from the same archive is reused. The archive is recognized by name, size and
    modification time, stored in a hidden file in the target, because hashing gigabytes at each
    start would cost more than unpacking twice on rare occasions.

    Raises:
        DatasetError: for a damaged archive, a member that would leave the target or is neither
            file, folder nor link, a decompression bomb, or a target with other content.
    """
    _check_suffix(archive)
    key = _identify(archive)
    with folder_lock(target):
        if _made_from(target) == key:
            return target
        _check_target_is_free(target, archive)
        with replaced_folder(target) as partial, _damage_named(archive):
            _extract(archive, ArchiveFolder(archive, partial))
            marker = partial / MARKER
            marker.unlink(missing_ok=True)
            marker.write_text(json.dumps({"key": key}), encoding="utf-8")
    return target


def _extract(archive: Path, folder: ArchiveFolder) -> None:
    budget = SizeBudget(archive, folder.place)
    if archive.name.lower().endswith(".zip"):
        extract_zip(archive, folder, budget)
    else:
        extract_tar(archive, folder, budget)
    folder.check_links_stay_inside()


def _check_suffix(archive: Path) -> None:
    if not archive.name.lower().endswith(SUFFIXES):
        raise DatasetError(
            f"{archive} must end in one of {', '.join(SUFFIXES)}, which gives its format. "
            f"Got {archive.name!r}. Unpack it yourself and set data.raw to the folder."
        )


def _identify(archive: Path) -> str:
    try:
        facts = archive.stat()
    except OSError as error:
        raise DatasetError(f"archive {archive} cannot be read: {error.strerror}.") from error
    text = json.dumps([archive.name, facts.st_size, facts.st_mtime_ns])
    return hashlib.sha256(text.encode()).hexdigest()


def _made_from(target: Path) -> str | None:
    try:
        return str(json.loads((target / MARKER).read_text(encoding="utf-8"))["key"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _check_target_is_free(target: Path, archive: Path) -> None:
    if target.is_dir() and (not any(target.iterdir()) or (target / MARKER).exists()):
        return
    if target.exists():
        raise DatasetError(
            f"{target} must be empty, because {archive} is unpacked there, but it holds other "
            "files. Move them away, or set data.raw to their folder."
        )


@contextmanager
def _damage_named(archive: Path) -> Iterator[None]:
    """Converts the libraries' errors for a damaged archive to a DatasetError that names it."""
    try:
        yield
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError) as error:
        raise _damaged(archive, error) from error
    except (NotImplementedError, RuntimeError) as error:
        raise DatasetError(f"archive {archive} cannot be unpacked: {error}.") from error
    except OSError as error:
        # Decompressors raise an OSError without errno for bad data; disk errors have one.
        if error.errno is None:
            raise _damaged(archive, error) from error
        raise DatasetError(f"archive {archive} cannot be unpacked: {error}.") from error


def _damaged(archive: Path, error: Exception) -> DatasetError:
    return DatasetError(
        f"archive {archive} is damaged or truncated ({error}). Download it again, and compare "
        "its size or checksum with the publisher's."
    )
