"""Puts good copies in the place of damaged files, one process at a time and whole or not at all."""

import logging
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from dml_core.data.atomic_folder import remove_leftovers

LOGGER = logging.getLogger(__name__)
PROJECT = Path()
"""Root of the DVC project: the folder that every command and every trial works in."""

Source = Callable[[Path], Path]
"""Gets an empty folder to work in, and returns the folder that holds the copies.

Raises a ValueError or an OSError where it has none."""


class NoGoodCopy(ValueError):
    """No source has the files; the message has a line for each source that was tried."""


def restore_files(
    folder: Path, sources: Mapping[str, Source], choose: Callable[[Path], Sequence[str]]
) -> str:
    """Replaces files of a folder by the copies of the first source whose copies are good.

    Call it inside `folder_lock`: what dead processes left beside the folder is removed.

    Args:
        folder: has the damaged files.
        sources: by what they are called in messages, in order of preference.
        choose: returns which of the copies to take; raises a ValueError when one is not good.

    Returns:
        What the source is called.

    Raises:
        NoGoodCopy: when no source has good copies. Nothing was changed then.
    """
    remove_leftovers(folder)
    refusals = []
    for name, source in sources.items():
        with _scratch(folder) as scratch:
            try:
                copies = source(scratch)
                chosen = list(choose(copies))
            except (ValueError, OSError) as error:
                refusals.append(f"\n  - {name}: {str(error).splitlines()[0]}")
                continue
            for file in chosen:
                _put(copies / file, folder / file)
            return name
    raise NoGoodCopy("".join(refusals))


def mend_copies(folder: Path, names: Sequence[str]) -> None:
    """Puts good files of a folder that DVC tracks where its cache has damaged copies or none."""
    from tasks.adapters.dvc_copies import mend_cache

    # Only a service to later commands: the files themselves are whole again.
    with suppress(ValueError, OSError):
        for name in mend_cache(PROJECT, folder, names):
            LOGGER.warning("%s in DVC's cache was damaged or lost too, and is replaced.", name)


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    # On the same disk, so that a finished copy is renamed; remove_leftovers knows the name.
    folder = folder.resolve()
    scratch = folder.parent / f".{folder.name}.partial-{secrets.token_hex(4)}"
    scratch.mkdir()
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _put(copy: Path, target: Path) -> None:
    with copy.open("rb") as file:
        os.fsync(file.fileno())
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(copy, target)
