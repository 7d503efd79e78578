"""Finds a good copy of damaged prepared data, and puts it in the place of the damaged files."""

import contextlib
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from dml_core.config.data import DataBase
from dml_core.data.atomic_folder import folder_lock, remove_leftovers
from dml_core.data.prepared_info import FILE_NAME as INFO_FILE
from dml_core.data.prepared_info import PreparedInfo, check_values_match, hash_file, load_info
from dml_core.data.records import DatasetError
from dml_core.data.writing import DEVELOPMENT, TEST
from tasks.versioning.damage import Damage, find_damage

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
    from tasks.versioning.copies import mend_cache

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


_MAX_ROUNDS = 2
"""A damaged dataset.json hides which other files are damaged, so that these come second."""


def ensure_whole(config: DataBase, parts: Sequence[str] = (DEVELOPMENT,)) -> None:
    """Compares prepared files with their sha256, and restores those that are damaged.

    A copy is taken from DVC's cache, else from the project's default remote, else the data are
    prepared again. Data that are not prepared, or with other values, are left to who opens them.

    Args:
        config: the dataset's section.
        parts: which images are about to be read.

    Raises:
        DatasetError: when there is no good copy; with the file and what was tried.
    """
    folder = config.prepared_path
    if not find_damage(folder, parts) or _has_other_values(config):
        return
    with folder_lock(folder):
        for _ in range(_MAX_ROUNDS):
            # Another process may have restored them while this one waited.
            if damages := find_damage(folder, parts):
                _restore(config, damages)


def restore_before_preparing(config: DataBase) -> None:
    """Restores what is damaged of former data, so that preparing does not find them reusable.

    Without a good copy nothing is lost: the raw data are others now, and all is made anew.
    """
    try:
        ensure_whole(config, (DEVELOPMENT, TEST))
    except DatasetError as error:
        LOGGER.warning("%s The data are prepared anew.", error)


def _has_other_values(config: DataBase) -> bool:
    try:
        info = load_info(config.prepared_path)
    except DatasetError:
        return False
    try:
        check_values_match(info, config, config.prepared_path)
    except DatasetError:
        return True
    return False


def _restore(config: DataBase, damages: Sequence[Damage]) -> None:
    folder = config.prepared_path
    names = [damage.file.relative_to(folder).as_posix() for damage in damages]
    wanted = list(dict.fromkeys([*names, INFO_FILE]))
    sources = _list_sources(config, wanted)
    listed = "\n".join(str(damage) for damage in damages)
    try:
        source = restore_files(folder, sources, lambda copies: _choose(config, wanted, copies))
    except NoGoodCopy as tried:
        raise DatasetError(
            f"{listed}\nNo good copy was found:{tried}\nBring the file back from a backup, run "
            "dml data pull where a remote has it, or put the raw data where data.raw says; then "
            "run: dml prepare"
        ) from tried
    LOGGER.warning("%s It was restored from %s.", listed, source)
    mend_copies(folder, wanted)


def _list_sources(config: DataBase, names: list[str]) -> dict[str, Source]:
    from tasks.versioning.copies import copy_tracked

    folder = config.prepared_path
    return {
        "DVC's cache": lambda target: copy_tracked(PROJECT, folder, names, target, store="cache"),
        "DVC's remote": lambda target: copy_tracked(PROJECT, folder, names, target, store="remote"),
        "preparing again": lambda target: _prepare_again(config, target),
    }


def _prepare_again(config: DataBase, target: Path) -> Path:
    # Readers of all formats, which a sweep over whole data does not wait for.
    from dml_core.data.prepare import prepare_dataset
    from dml_core.data.sources.registry import list_images

    elsewhere = config.model_copy(update={"prepared_root": str(target)})
    prepare_dataset(list_images(elsewhere), elsewhere)
    return elsewhere.prepared_path


def _choose(config: DataBase, names: list[str], copies: Path) -> list[str]:
    """Returns the files to take, once they are known to be of the same data and whole."""
    info = load_info(copies)
    check_values_match(info, config, copies)
    _check_is_same_data(info, config.prepared_path)
    for name in names:
        if name != INFO_FILE and hash_file(copies / name) != info.files[name]["sha256"]:
            raise DatasetError(f"its copy of {name} is damaged too.")
    return names


def _check_is_same_data(info: PreparedInfo, folder: Path) -> None:
    former = None
    with contextlib.suppress(DatasetError):
        former = load_info(folder)
    if former is None:
        return
    found, wanted = (f"{one.content_hash}/{one.split_hash}" for one in (info, former))
    if found != wanted:
        raise DatasetError(f"it has other data, {found} instead of {wanted}.")
