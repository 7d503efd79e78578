"""Unpacks zip archives."""

import stat
import zipfile
from pathlib import Path

from dml_core.data.archive_folder import ArchiveFolder, SizeBudget

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
    # The upper half holds the Unix mode; it is zero where another system made the archive.
    kind = stat.S_IFMT(member.external_attr >> 16)
    if kind == stat.S_IFLNK:
        raise folder.refusal(member.filename, "is a link, which no dataset's zip needs")
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise folder.refusal(member.filename, "is a device, pipe or other special file")
    if member.flag_bits & _ENCRYPTED:
        raise folder.refusal(member.filename, "is encrypted")
