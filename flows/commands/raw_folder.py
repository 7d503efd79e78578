"""Brings a user's dataset into data/raw, the folder that the prepare stage depends on."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dml_core.data.records import DatasetError
from dml_core.data.sources.raw_search import UNPACKED_SUFFIX, archive_stem
from flows.commands.terminal import say

RAW = Path("data") / "raw"
MANY_FILES = 10_000


@contextmanager
def placed_in_raw(path: Path, *, project: Path, name: str) -> Iterator[Path]:
    """Yields where a dataset lies in data/raw; one from elsewhere is copied there.

    The copy is removed again if the block raises; the original is never touched.
    """
    source, raw = path.expanduser().resolve(), project.resolve() / RAW
    if not source.exists():
        raise DatasetError(f"there is no file or folder {path}. Name the dataset's folder.")
    if source.is_relative_to(raw) and source != raw:
        yield project / source.relative_to(project.resolve())
        return
    if project.resolve().is_relative_to(source):
        raise DatasetError(f"{path} holds this project itself. Name the folder of the images.")
    target = raw / (name if source.is_dir() else name + "".join(source.suffixes))
    if target.exists():
        raise DatasetError(
            f"{target} must be free for a copy of {path}. Found something there. Choose another "
            f"--name, or add what is there with: dml data add {RAW / target.name} --name {name}"
        )
    say(f"copying {path} to {RAW / target.name}")
    try:
        _copy(source, target)
        yield project / RAW / target.name
    except BaseException:
        _remove(target)
        raise


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        # Links stay links: following one may lead out of the dataset or in circles.
        shutil.copytree(source, target, symlinks=True)
    else:
        shutil.copy2(source, target)


def _remove(target: Path) -> None:
    if target.is_dir():
        shutil.rmtree(target)
        return
    target.unlink(missing_ok=True)
    # The check unpacks an archive beside it.
    unpacked = f"{archive_stem(target.name)}{UNPACKED_SUFFIX}"
    shutil.rmtree(target.with_name(unpacked), ignore_errors=True)
