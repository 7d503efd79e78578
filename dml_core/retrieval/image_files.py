"""Finds the image files below a folder, and says why one of them cannot be used."""

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dml_core.data.sources.folder import IMAGE_SUFFIXES

SUFFIXES = IMAGE_SUFFIXES | {
    *(".avif", ".heic", ".heif", ".j2k", ".jfif", ".jp2", ".jpe", ".mpo", ".pnm"),
}
"""Endings of files that people call images, whether or not they can be decoded here."""

_NUM_LOOKED_AT = 16
_HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
_AVIF_BRANDS = (b"avif", b"avis")
_REMEDY = "convert it to JPEG or PNG"


class FolderError(ValueError):
    """A folder cannot be searched for images; the message names it and a remedy."""


@dataclass(frozen=True)
class FileStamp:
    """Size and time of a file: a file with another stamp has changed."""

    size: int
    modified_ns: int


@dataclass(frozen=True)
class FolderListing:
    """The image files below a folder."""

    files: dict[str, FileStamp]
    """By the path below the folder, with slashes, sorted."""
    ignored: dict[str, int]
    """Number of other files by their ending."""
    links: tuple[str, ...]
    """Links to folders, which are not followed: they may leave the folder or form cycles."""


def resolve_folder(folder: Path) -> Path:
    """Returns a folder's absolute path without links.

    Raises:
        FolderError: where there is no such folder, or it is a cycle of links.
    """
    try:
        found = folder.expanduser().resolve(strict=True)
    except FileNotFoundError as error:
        raise FolderError(f"the folder {folder} does not exist. Check the path.") from error
    except (OSError, RuntimeError) as error:
        # Python raises RuntimeError for a cycle of links.
        raise FolderError(f"the folder {folder} cannot be followed: {error}.") from error
    if not found.is_dir():
        raise FolderError(f"{folder} must be a folder of images. It is a file.")
    return found


def list_image_files(root: Path) -> FolderListing:
    """Returns the files below a folder that are named like images; hidden ones are left out.

    Raises:
        FolderError: where a folder cannot be read, or there is no image file at all.
    """
    files: dict[str, FileStamp] = {}
    ignored: Counter[str] = Counter()
    links: list[str] = []
    for path, name in _walk(root, links):
        suffix = os.path.splitext(name)[1].lower()
        if suffix not in SUFFIXES:
            ignored[suffix or "no ending"] += 1
            continue
        if (stamp := read_stamp(os.path.join(root, path))) is not None:
            files[path] = stamp
    if not files:
        others = f" It has {ignored.total():,} other files." if ignored else " It is empty."
        raise FolderError(
            f"{root} has no image files (*{', *'.join(sorted(SUFFIXES))}).{others} "
            "Name a folder with images."
        )
    return FolderListing(dict(sorted(files.items())), dict(ignored), tuple(sorted(links)))


def _walk(root: Path, links: list[str]) -> Iterator[tuple[str, str]]:
    """Yields the path below the root and the name of each file that is not hidden."""
    for folder, subfolders, names in os.walk(root, onerror=_refuse):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        below = os.path.relpath(folder, root)
        for name in subfolders:
            if os.path.islink(os.path.join(folder, name)):
                links.append(_join(below, name))
        for name in names:
            if not name.startswith("."):
                yield _join(below, name), name


def _join(folder: str, name: str) -> str:
    return name if folder == "." else f"{folder}/{name}"


def _refuse(error: OSError) -> None:
    raise FolderError(
        f"{error.filename} cannot be read: {error.strerror}. Check its permissions."
    ) from error


def read_stamp(path: str | os.PathLike[str]) -> FileStamp | None:
    """Returns the stamp of a file; None where it does not exist (any more)."""
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return FileStamp(facts.st_size, facts.st_mtime_ns)


def explain_unreadable(path: str | os.PathLike[str], reason: str) -> str:
    """Returns why an image file cannot be used; formats of phones are named with the remedy.

    Args:
        path: the file.
        reason: of the decoder.
    """
    try:
        with open(path, "rb") as file:
            return explain_content(file.read(_NUM_LOOKED_AT), reason)
    except OSError:
        return reason


def explain_content(content: bytes, reason: str) -> str:
    """Returns why the bytes of an image file cannot be used, as `explain_unreadable`."""
    brand = content[8:12] if content[4:8] == b"ftyp" else b""
    if brand in _AVIF_BRANDS:
        return f"is an AVIF image that cannot be decoded here; {_REMEDY}"
    if brand in _HEIC_BRANDS:
        return f"is a HEIC image, which cannot be decoded here; {_REMEDY}"
    return reason
