"""Has DVC know what frozen trunks made of the images, so that it is kept, pushed and pulled."""

import logging
from collections.abc import Iterable
from pathlib import Path

from dml_core.config.data import DataBase
from dml_core.training.activation_store import list_stored
from tasks.study import StudyRequest, load_context
from tasks.versioning.session import wait_while_locked
from tasks.versioning.stages import LOCK_TIMEOUT_SECONDS, PROJECT, is_versioned

LOGGER = logging.getLogger(__name__)


def track_activations(request: StudyRequest) -> list[Path]:
    """Gives each new folder of activations its `.dvc` file, and returns these folders.

    Nothing is done for a run that DVC does not know, nor for data outside of the project.
    """
    if not is_versioned(request):
        return []
    folders = _list_new(load_context(request).datasets)
    if folders:
        from tasks.versioning.session import track

        for folder in folders:
            wait_while_locked(
                lambda folder=folder: track(PROJECT, folder),
                timeout_seconds=LOCK_TIMEOUT_SECONDS,
                on_wait=LOGGER.warning,
            )
    return folders


def _list_new(datasets: Iterable[DataBase]) -> list[Path]:
    found = {folder for data in datasets for folder in list_stored(data)}
    inside = [folder for folder in found if folder.resolve().is_relative_to(PROJECT.resolve())]
    return sorted(folder for folder in inside if _is_new(folder))


def _is_new(folder: Path) -> bool:
    """Tells whether DVC knows no version of the folder, or an older one."""
    known = folder.with_name(f"{folder.name}.dvc")
    if not known.exists():
        return True
    written = known.stat().st_mtime_ns
    return any(file.stat().st_mtime_ns > written for file in folder.iterdir())
