"""Writes an archive's members below one folder and nowhere else."""

import os
import shutil
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO

from dml_core.data.records import DatasetError

MAX_MEMBERS = 5_000_000
MAX_RATIO = 100
"""Images hardly compress; the benchmarks' archives grow by less than a factor of three."""
SMALL_BYTES = 100 * 2**20
"""Below this, no ratio is worth a refusal."""
_BLOCK = 2**20


class SizeBudget:
    """Counts what an archive unpacks to, and stops it where it looks like a bomb."""

    def __init__(self, archive: Path, place: Path) -> None:
        self._archive = archive
        self._by_ratio = max(SMALL_BYTES, MAX_RATIO * archive.stat().st_size)
        self._by_disk = shutil.disk_usage(place).free
        self._members = 0
        self._bytes = 0

    def count_member(self) -> None:
        """Counts one more member."""
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
                "bomb. If it is trusted, unpack it yourself and name the folder in data.raw."
            )
        if self._bytes > self._by_disk:
            raise DatasetError(
                f"archive {self._archive} unpacks to more than the {self._by_disk} bytes that "
                "are free on the disk. Free some space, or unpack it elsewhere."
            )


class ArchiveFolder:
    """The folder that an archive's members go to; refuses each member that would leave it."""

    def __init__(self, archive: Path, place: Path) -> None:
        self._archive = archive
        self.place = place
        self._links: set[PurePosixPath] = set()

    def add_folder(self, name: str) -> None:
        """Makes a folder."""
        self._place_of(name).mkdir(parents=True, exist_ok=True)

    def add_file(
        self, name: str, source: IO[bytes], *, size: int, budget: SizeBudget | None = None
    ) -> None:
        """Writes a file from a stream; of two members with one name the later stays."""
        written = 0
        with open(self._free_place(name), "xb") as stream:
            while block := source.read(_BLOCK):
                if budget is not None:
                    budget.count_bytes(len(block))
                written += stream.write(block)
        if written != size:
            raise EOFError(f"member {name!r} has {written} of {size} bytes")

    def add_copy(self, name: str, original: str, *, budget: SizeBudget) -> None:
        """Writes a hard link as a copy of the member it links to, which must come before it."""
        source = self._place_of(original, linked_by=name)
        if source.is_symlink() or not source.is_file():
            raise self.refusal(name, f"links to {original!r}, which is no file of the archive")
        budget.count_bytes(source.stat().st_size)
        if source != self._place_of(name):
            shutil.copyfile(source, self._free_place(name))

    def add_link(self, name: str, points_to: str) -> None:
        """Makes a symbolic link that stays inside the folder."""
        place = self._free_place(name)
        inside = self.place.joinpath(self._checked(name).parent, points_to)
        if os.path.isabs(points_to) or not Path(os.path.normpath(inside)).is_relative_to(
            self.place
        ):
            raise self.refusal(name, f"links to {points_to!r}, outside of the target folder")
        place.symlink_to(points_to)
        self._links.add(self._checked(name))

    def check_links_stay_inside(self) -> None:
        """Refuses links that leave the folder by way of other links."""
        root = os.path.realpath(self.place)
        for link in sorted(self._links):
            if not Path(os.path.realpath(self.place / link)).is_relative_to(root):
                raise self.refusal(str(link), "links outside of the target folder")

    def refusal(self, name: str, reason: str) -> DatasetError:
        """Returns the error for a member that must not be unpacked."""
        return DatasetError(
            f"archive {self._archive} has a member {name!r} that {reason}. An honest dataset has "
            "none such, so nothing was unpacked. Download it again from its publisher."
        )

    def _free_place(self, name: str) -> Path:
        place = self._place_of(name)
        if place == self.place or place.is_dir():
            raise self.refusal(name, "takes the place of a folder")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        return place

    def _place_of(self, name: str, *, linked_by: str | None = None) -> Path:
        path = self._checked(name, linked_by=linked_by)
        # Written through a link, a file would land where the name does not say.
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
            raise self.refusal(member, f"climbs out of the target folder by '..' in {name!r}")
        if "\x00" in name:
            raise self.refusal(member, "has a zero byte in its name")
        return path
