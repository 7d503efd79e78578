"""Unpacks a downloaded archive into a folder, trusting nothing that the archive says."""

import hashlib
import json
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dml_core.data.archive_folder import ArchiveFolder, SizeBudget
from dml_core.data.archive_tar import extract_tar
from dml_core.data.archive_zip import extract_zip
from dml_core.data.atomic_folder import folder_lock, replaced_folder
from dml_core.data.records import DatasetError

SUFFIXES = (".tgz", ".tar.gz", ".tar.bz2", ".tar", ".zip")
MARKER = ".extracted_from.json"


def extract_archive(archive: Path, target: Path) -> Path:
    """Makes the target folder from the archive's content and returns it.

    The content is unpacked beside the target and renamed at the end, so a target that exists is
    complete. A target made earlier from the same archive is returned as it is; the archive is
    known again by name, size and modification time, kept in a hidden file in the target, since
    reading gigabytes for a hash at each start would cost more than a rare second unpacking.

    Raises:
        DatasetError: for a damaged archive, a member that would leave the target or is neither
            file, folder nor link, more data than an honest archive of images holds, or a target
            with content that was not unpacked here.
    """
    _check_suffix(archive)
    key = _identify(archive)
    with folder_lock(target):
        if _made_from(target) == key:
            return target
        _check_target_is_ours(target, archive)
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
            f"{archive} must end in one of {', '.join(SUFFIXES)}, so that its kind is known. "
            f"Got {archive.name!r}. Unpack it yourself and name the folder in data.raw."
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


def _check_target_is_ours(target: Path, archive: Path) -> None:
    if target.is_dir() and (not any(target.iterdir()) or (target / MARKER).exists()):
        return
    if target.exists():
        raise DatasetError(
            f"{target} must be free, since {archive} is to be unpacked there, but holds files "
            "from elsewhere. Move them away, or name their folder in data.raw."
        )


@contextmanager
def _damage_named(archive: Path) -> Iterator[None]:
    """Turns what the libraries raise on a damaged archive into one error that names it."""
    try:
        yield
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError) as error:
        raise _damaged(archive, error) from error
    except (NotImplementedError, RuntimeError) as error:
        raise DatasetError(f"archive {archive} cannot be unpacked: {error}.") from error
    except OSError as error:
        # Decompressors raise a bare OSError for bad data; the disk's own errors have a number.
        if error.errno is None:
            raise _damaged(archive, error) from error
        raise DatasetError(f"archive {archive} cannot be unpacked: {error}.") from error


def _damaged(archive: Path, error: Exception) -> DatasetError:
    return DatasetError(
        f"archive {archive} is damaged or truncated ({error}). Download it again, and compare "
        "its size or checksum with the publisher's."
    )
