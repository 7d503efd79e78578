"""Unpacks tar archives, plain or compressed by gzip or bzip2."""

import bz2
import gzip
import io
import tarfile
from pathlib import Path
from typing import IO, cast

from dml_core.data.archive_folder import ArchiveFolder, SizeBudget

_BLOCK = 512
_KEPT = 64 * 1024


class CountedStream(io.RawIOBase):
    """Counts the decompressed bytes as they are read, and remembers the last of them."""

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
        """Returns the block of 512 bytes at an offset that was read lately."""
        start = offset - (self._position - len(self._last))
        return self._last[start : start + _BLOCK] if start >= 0 else b""


def extract_tar(archive: Path, folder: ArchiveFolder, budget: SizeBudget) -> None:
    """Writes all members to the folder; raises tarfile.ReadError where the archive breaks off."""
    # Read as a stream, so that the budget also bounds headers, which tarfile holds in memory.
    with _decompressed(archive) as source:
        stream = CountedStream(source, budget)
        with tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r|") as tar:
            for member in tar:
                budget.count_member()
                _extract_member(tar, member, folder, budget)
            # tarfile takes a broken header for the end; the real end is a block of zeros.
            if stream.block_at(tar.offset) != bytes(_BLOCK):
                raise tarfile.ReadError(f"no end mark at byte {tar.offset}")
        while stream.read(2**20):
            # Reading on to the end makes gzip and bzip2 compare their checksums.
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
        # The stream counts what it delivers, which the holes of a sparse file are not part of.
        uncounted = budget if member.issparse() else None
        folder.add_file(member.name, content, size=member.size, budget=uncounted)
    else:
        raise folder.refusal(member.name, "is a device, pipe or other special file")
