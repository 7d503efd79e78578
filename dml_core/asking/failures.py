"""Failures of a look: an error in one line, and nothing left behind."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dml_core.data.records import DatasetError
from dml_core.data.sources.raw_search import UNPACKED_SUFFIX, archive_stem

RAW = Path("data") / "raw"
"""Where a project keeps images."""


@contextmanager
def named_as(archive: Path, folder: Path) -> Iterator[None]:
    """Names the archive in errors about the folder that it was unpacked to."""
    try:
        yield
    except DatasetError as error:
        raise DatasetError(str(error).replace(str(folder), str(archive))) from error


@contextmanager
def in_one_line(path: str) -> Iterator[None]:
    """Shortens an error with a list of problems to its first one."""
    try:
        yield
    except DatasetError as error:
        raise DatasetError(_shorten(str(error))) from error
    except OSError as error:
        where = error.filename or path
        raise DatasetError(f"{where} cannot be read: {error.strerror or error}.") from error


def _shorten(text: str) -> str:
    first, *others = text.splitlines()
    problems = [line.removeprefix("  - ") for line in others if line.startswith("  - ")]
    if not problems:
        return " ".join([first, *(line.strip() for line in others)])
    advice = " ".join(line for line in others if not line.startswith("  - "))
    more = " The others are similar." if len(problems) > 1 else ""
    return f"{first} {problems[0]}{more} {advice}".strip()


@contextmanager
def leaves_nothing(path: str, *, name: str, project: Path) -> Iterator[None]:
    """Removes what was unpacked or converted if the block raises."""
    source = Path(os.path.abspath(os.path.expanduser(path)))
    unpacked = project / "data" / "prepared" / ".unpacked"
    made = [project / RAW / f"{name}.tar", project / RAW / f"{name}{UNPACKED_SUFFIX}"]
    made += [unpacked / name, unpacked, unpacked.parent]
    if stem := archive_stem(source.name):
        made.append(source.with_name(f"{stem}{UNPACKED_SUFFIX}"))
    new = [place for place in made if not os.path.lexists(place)]
    try:
        yield
    except BaseException:
        for place in new:
            _remove(place, is_shared=place in (unpacked, unpacked.parent))
        raise


def _remove(place: Path, *, is_shared: bool) -> None:
    # The error that led here matters more than one of cleaning up.
    with suppress(OSError):
        if is_shared:
            # Only if it is empty: another process may have put something there.
            place.rmdir()
        elif place.is_dir():
            shutil.rmtree(place, ignore_errors=True)
        else:
            place.unlink(missing_ok=True)
