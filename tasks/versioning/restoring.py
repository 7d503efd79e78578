"""Finds damaged files of prepared data, and replaces them by good copies."""

import contextlib
import json
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dml_core.config.data import DataBase
from dml_core.data.atomic_folder import folder_lock, remove_leftovers
from dml_core.data.prepared_info import FILE_NAME as INFO_FILE
from dml_core.data.prepared_info import (
    FORMAT_VERSION,
    PreparedInfo,
    check_values_match,
    hash_file,
    load_info,
)
from dml_core.data.records import DatasetError
from dml_core.data.splits import FILE_NAME as SPLIT_FILE
from dml_core.data.writing import DEVELOPMENT, TEST

Identity = tuple[tuple[str, int, int, int], ...]
"""Name, inode, size and modification time of each file."""

_verified: set[tuple[str, int, int, int, str]] = set()
"""Files that this process has hashed and found intact; they are not hashed again."""


@dataclass(frozen=True)
class Damage:
    """One file whose bytes differ from those written."""

    file: Path
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.file} is damaged: its sha256 must be {self.expected}. Got {self.found}."


def find_damage(folder: Path, parts: Sequence[str] = (DEVELOPMENT,)) -> list[Damage]:
    """Returns the damaged files of a prepared folder; none where nothing is prepared.

    A process hashes a file once, and again when its inode, size or modification time changed.

    Args:
        folder: the prepared folder.
        parts: which images; the split is always checked.
    """
    if not (folder / INFO_FILE).exists() or _is_of_another_version(folder):
        return []
    try:
        info = load_info(folder)
        written = {name: _read_entry(info, name) for name in list_names(info, parts)}
    except (DatasetError, AttributeError, KeyError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        return [Damage(folder / INFO_FILE, "that of a readable file", f"one that is not: {reason}")]
    checked = (_check(folder / name, *entry) for name, entry in written.items())
    return [damage for damage in checked if damage is not None]


def list_names(info: PreparedInfo, parts: Iterable[str]) -> list[str]:
    """Returns the files of the split and of some parts, relative to the prepared folder."""
    folders = tuple(f"{part}/" for part in parts)
    return [name for name in info.files if name == SPLIT_FILE or name.startswith(folders)]


def identify_files(config: DataBase) -> Identity:
    """Returns a value that changes when the development files are replaced or modified."""
    folder = config.prepared_path
    files = sorted((folder / DEVELOPMENT).glob("*")) if folder.is_dir() else []
    return tuple(_identify(file) for file in files)


def _read_entry(info: PreparedInfo, name: str) -> tuple[str, int]:
    return str(info.files[name]["sha256"]), int(info.files[name]["size"])


def _check(file: Path, expected: str, size: int) -> Damage | None:
    if not file.is_file():
        return Damage(file, expected, "no file")
    identity = _identify(file)
    if (*identity, expected) in _verified:
        return None
    found = hash_file(file)
    if found != expected:
        return Damage(file, expected, f"{found} ({identity[2]} of {size} bytes)")
    _verified.add((*identity, expected))
    return None


def _identify(file: Path) -> tuple[str, int, int, int]:
    state = os.stat(file)
    return str(file.resolve()), state.st_ino, state.st_size, state.st_mtime_ns


def _is_of_another_version(folder: Path) -> bool:
    """Returns whether another version of the program wrote the data."""
    try:
        version = json.loads((folder / INFO_FILE).read_text(encoding="utf-8"))["format_version"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return isinstance(version, int) and version != FORMAT_VERSION


LOGGER = logging.getLogger(__name__)
PROJECT = Path()
"""Root of the DVC project: the working directory of every command and trial."""

Source = Callable[[Path], Path]
"""Takes an empty folder to work in, and returns the folder that holds the copies.

Raises a ValueError or an OSError where there are none."""


class NoGoodCopy(ValueError):
    """No source has the files; the message has a line for each source."""


def restore_files(
    folder: Path, sources: Mapping[str, Source], choose: Callable[[Path], Sequence[str]]
) -> str:
    """Replaces files of a folder by copies from the first source that has good ones.

    Call it inside `folder_lock`: it removes the leftovers of dead processes beside the folder.

    Args:
        folder: has the damaged files.
        sources: by their names in messages, in order of preference.
        choose: returns which of the copies to take; raises a ValueError when one is not good.

    Returns:
        The name of the source.

    Raises:
        NoGoodCopy: when no source has good copies. Nothing has changed then.
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


def repair_copies(folder: Path, names: Sequence[str]) -> None:
    """Replaces damaged or missing objects in DVC's cache by the good files of a tracked folder."""
    from tasks.versioning.copies import repair_cache

    # This helps later commands only: the files themselves are intact again.
    with suppress(ValueError, OSError):
        for name in repair_cache(PROJECT, folder, names):
            LOGGER.warning("%s was damaged or lost in DVC's cache too, and is replaced.", name)


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
"""A damaged dataset.json hides which other files are damaged, so these come second."""


def ensure_whole(config: DataBase, parts: Sequence[str] = (DEVELOPMENT,)) -> None:
    """Compares prepared files with their sha256, and restores damaged ones.

    Copies come from DVC's cache, else from the project's default remote, else from a new
    preparation. Data that are not prepared, or prepared with other values, are not checked.

    Args:
        config: the dataset's section.
        parts: which images are about to be read.

    Raises:
        DatasetError: when there is no good copy; with the file and the sources tried.
    """
    folder = config.prepared_path
    if not find_damage(folder, parts) or _has_other_values(config):
        return
    with folder_lock(folder):
        for _ in range(_MAX_ROUNDS):
            # Another process may have restored them in the meantime.
            if damages := find_damage(folder, parts):
                _restore(config, damages)


def restore_before_preparing(config: DataBase) -> None:
    """Restores damaged data before a preparation, which would otherwise reuse them.

    Without a good copy nothing is lost: the raw data have changed, and all is prepared anew.
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
    repair_copies(folder, wanted)


def _list_sources(config: DataBase, names: list[str]) -> dict[str, Source]:
    from tasks.versioning.copies import copy_tracked

    folder = config.prepared_path
    return {
        "DVC's cache": lambda target: copy_tracked(PROJECT, folder, names, target, store="cache"),
        "DVC's remote": lambda target: copy_tracked(PROJECT, folder, names, target, store="remote"),
        "preparing again": lambda target: _prepare_again(config, target),
    }


def _prepare_again(config: DataBase, target: Path) -> Path:
    # Late: the readers of all formats take time to import, and data are rarely damaged.
    from dml_core.data.prepare import prepare_dataset
    from dml_core.data.sources.registry import list_images

    elsewhere = config.model_copy(update={"prepared_root": str(target)})
    prepare_dataset(list_images(elsewhere), elsewhere)
    return elsewhere.prepared_path


def _choose(config: DataBase, names: list[str], copies: Path) -> list[str]:
    """Returns the files to take, after checking that they are intact and of the same data."""
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
