"""Restores damaged checkpoints of a sweep's winners from a good copy."""

import json
import logging
from dataclasses import replace
from pathlib import Path

from dml_core.config import resolve_trial_config
from dml_core.data.atomic_folder import folder_lock
from dml_core.training.checkpoint import DamagedCheckpoint, load_checkpoint, save_checkpoint
from dml_core.training.kept import open_checkpoints
from dml_core.trials.journal import Journal, read_epochs
from dml_core.trials.store import open_store
from dml_core.trials.table import read_trials
from tasks.study import StudyContext
from tasks.versioning.restoring import PROJECT, NoGoodCopy, Source, repair_copies, restore_files

LOGGER = logging.getLogger(__name__)
FILE_NAME = "checkpoint.pt"
EPOCHS = "epochs.jsonl"


def restore_winners(context: StudyContext) -> None:
    """Replaces damaged and missing checkpoints of a study's winners by good copies.

    Copies come from DVC's cache, the remote, or the last checkpoint of the trial itself.

    Raises:
        DamagedCheckpoint: when there is none; with the sources tried and a command to run.
    """
    with folder_lock(context.sweep_folder):
        for folder in list_winner_folders(context.sweep_folder):
            if (reason := find_problem(folder)) is not None:
                _restore(context, folder, reason)


def list_winner_folders(sweep_folder: Path) -> list[Path]:
    """Returns the folders of a sweep's winners, including those without a checkpoint."""
    return sorted(path for path in (sweep_folder / "winners").glob("*-seed*") if path.is_dir())


def find_problem(folder: Path) -> str | None:
    """Returns the problem with a winner's checkpoint, or None."""
    try:
        checkpoint = load_checkpoint(folder / FILE_NAME)
    except (DamagedCheckpoint, FileNotFoundError) as error:
        return str(error)
    # An intact checkpoint may still be of another epoch than the winner was selected by.
    epochs = read_epochs(folder)
    if epochs and checkpoint.epoch != epochs[-1]["epoch"]:
        return f"checkpoint {folder / FILE_NAME} is of epoch {checkpoint.epoch}, not of the last."
    return None


def _restore(context: StudyContext, folder: Path, reason: str) -> None:
    try:
        source = restore_files(
            context.sweep_folder,
            _list_sources(context, folder),
            lambda copies: _choose(context.sweep_folder, folder, copies),
        )
    except NoGoodCopy as tried:
        raise DamagedCheckpoint(
            f"{reason} No good copy was found:{tried}\nRun: dml run {context.request.study} (which "
            "trains again what is lost)"
        ) from tried
    LOGGER.warning("%s It was restored from %s.", reason, source)
    name = (folder / FILE_NAME).relative_to(context.sweep_folder).as_posix()
    repair_copies(context.sweep_folder, [name])


def _list_sources(context: StudyContext, folder: Path) -> dict[str, Source]:
    from tasks.versioning.copies import copy_tracked

    tracked = context.sweep_folder
    names = [(folder / name).relative_to(tracked).as_posix() for name in (FILE_NAME, EPOCHS)]
    return {
        "DVC's cache": lambda to: copy_tracked(PROJECT, tracked, names, to, store="cache"),
        "DVC's remote": lambda to: copy_tracked(PROJECT, tracked, names, to, store="remote"),
        "the trial's own folder": lambda to: _copy_from_trial(context, folder, to),
    }


def _copy_from_trial(context: StudyContext, winner: Path, target: Path) -> Path:
    """Makes a winner's files from its trial's journal as the sweep does."""
    records = read_trials(context.sweep_folder / "trials.parquet")
    key = next((r.key for r in records if r.spec.trial_id == winner.name), "")
    journal = Journal(open_store(context.store_location), key)
    epochs = journal.epochs()
    last = epochs[-1]["epoch"] if epochs else 0
    checkpoint = open_checkpoints(journal).load(last)
    stored = json.loads((winner / "config.json").read_text(encoding="utf-8"))
    # A node may have read its data elsewhere; the winner has the study's own paths.
    config = resolve_trial_config(stored)
    made = target / winner.parent.name / winner.name
    save_checkpoint(replace(checkpoint, config=config), made / FILE_NAME)
    (made / EPOCHS).write_text(journal.store.read(key, EPOCHS) or "", encoding="utf-8")
    return target


def _choose(sweep_folder: Path, folder: Path, copies: Path) -> list[str]:
    """Returns the file to take, after checking that it is intact and of the same training."""
    relative = folder.relative_to(sweep_folder)
    copied = copies / relative
    if (copied / EPOCHS).read_bytes() != (folder / EPOCHS).read_bytes():
        raise DamagedCheckpoint("it has another training of this trial.")
    if problem := find_problem(copied):
        raise DamagedCheckpoint(problem)
    return [(relative / FILE_NAME).as_posix()]
