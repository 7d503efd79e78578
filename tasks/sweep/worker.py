"""Works on one trial of a sweep, in whatever process it was sent to."""

import fcntl
import logging
import os
import shutil
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dml_core.config import TrialConfig
from dml_core.data.prepared import DevelopmentData
from dml_core.process_memory import prepare_memory
from dml_core.training.checkpoint import Checkpoint, checkpoint_path
from dml_core.training.ddp import WorkerGroup, WorkerLost
from dml_core.training.determinism import choose_device
from dml_core.training.in_folder import train_in_folder, train_other_rank
from dml_core.training.report import EpochReport
from dml_core.trials.journal import note_device, note_start, read_device, read_epochs, write_end
from dml_core.trials.key import describe_device
from dml_core.trials.spec import spec_from_plain
from tasks.machine_faults import check_code, check_room, raise_machine_fault
from tasks.sweep.job import HUNG_FILE, TrialJob
from tasks.sweep.node_data import open_once, provide_data
from tasks.sweep.watchdog import Watchdog
from tasks.versioning.restoring import identify_files

MESSAGES = "messages"
"""Key of an epoch's report: what was said since the report before, where there is something."""
_LOGGERS = ("dml_core", "tasks")


class _Collector(logging.Handler):
    """Keeps warnings in a list."""

    def __init__(self, messages: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        """Adds a warning."""
        self._messages.append(record.getMessage())


@contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """Yields a list to which the project's own warnings are added within the block.

    A worker's log goes with its cluster, and nobody reads it.
    """
    messages: list[str] = []
    handler = _Collector(messages)
    for name in _LOGGERS:
        logging.getLogger(name).addHandler(handler)
    try:
        yield messages
    finally:
        for name in _LOGGERS:
            logging.getLogger(name).removeHandler(handler)


def take_messages(messages: list[str]) -> dict[str, list[str]]:
    """Returns what goes into the next report, and empties the list."""
    taken = list(messages)
    messages.clear()
    return {MESSAGES: taken} if taken else {}


LOGGER = logging.getLogger(__name__)

Report = Callable[[dict[str, Any]], None]

StartGroup = Callable[[TrialJob, TrialConfig], AbstractContextManager[WorkerGroup | None]]


def _train_alone(job: TrialJob, config: TrialConfig) -> AbstractContextManager[WorkerGroup | None]:
    return nullcontext()


def work_on_trial(job: TrialJob, *, report: Report, start_group: StartGroup = _train_alone) -> None:
    """Trains a trial to its end, or goes on with it, and leaves result.json in its folder.

    Nothing that goes wrong inside the training is raised: it is the trial's outcome. What is the
    machine's fault is raised, as the death of this process would be seen.

    Args:
        job: the trial.
        report: gets an epoch's record after each epoch, and first those of an interrupted trial
            that nobody may have heard of.
        start_group: starts the other ranks of a trial that has several.

    Raises:
        WorkerLost: when a rank is gone; the trial can resume with new workers.
        MachineFault: when the trial's folder takes no more files.
        OutOfMemory: when this process gets no more memory.
        OtherCode: when this process has other code or libraries than the sweep.
    """
    folder, config = Path(job.folder), spec_from_plain(job.spec).config
    if (folder / "result.json").exists():
        return
    check_code(job.code, job.libraries)
    prepare_memory()
    _enter_working_folder(job)

    limit = f"sweep.trial_timeout_seconds={job.timeout_seconds:g}"
    reason, note = f"no epoch finished within {limit}.", folder / HUNG_FILE
    try:
        with (
            Watchdog(job.timeout_seconds, note=note, reason=reason) as watchdog,
            collected_warnings() as messages,
            open(folder / "worker.lock", "a", encoding="ascii") as lock,
        ):
            # A worker of a killed driver may live for some seconds more; two would mix their files.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "result.json").exists():
                # Before the start counts: on a full disk nothing is begun.
                check_room(folder)
                _settle_on_device(folder, config)
                note_start(folder)
                note.unlink(missing_ok=True)

                def tell(epoch: dict[str, Any]) -> None:
                    # The driver may keep a trial waiting for as long as it likes.
                    with watchdog.paused():
                        report({**epoch, **take_messages(messages)})

                _train(job, config, folder, tell, start_group)
    except WorkerLost:
        raise
    except Exception as error:
        raise_machine_fault(error, folder)
        (folder / "failure.txt").write_text(traceback.format_exc(), encoding="utf-8")
        write_end(folder, config, outcome="failed", reason=_summarize(error))


def work_as_other_rank(job: TrialJob, *, join: Callable[[TrialConfig], WorkerGroup]) -> None:
    """Trains as a rank above 0; rank 0 is in `work_on_trial`.

    Args:
        job: the trial.
        join: returns this rank's view of the group once all ranks are there.

    Raises:
        WorkerLost: when another rank is gone.
        OtherCode: when this process has other code or libraries than the sweep.
    """
    check_code(job.code, job.libraries)
    prepare_memory()
    _enter_working_folder(job)
    config, data = _open_data(job, spec_from_plain(job.spec).config)
    group = join(config)
    try:
        train_other_rank(config, data, Path(job.folder), group=group)
    finally:
        group.close()


def _settle_on_device(folder: Path, config: TrialConfig) -> None:
    """Writes which kind of device trains; a trial that was begun on another kind starts anew."""
    device, begun_on = describe_device(choose_device(config.training.device)), read_device(folder)
    if begun_on and begun_on != device:
        LOGGER.warning("it was begun on %s and is trained anew on %s.", begun_on, device)
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        (folder / "epochs.jsonl").unlink(missing_ok=True)
    if begun_on != device:
        note_device(folder, device)


def _enter_working_folder(job: TrialJob) -> None:
    if Path(job.working_folder).is_dir():
        os.chdir(job.working_folder)


class DataChanged(Exception):
    """The files that a trial reads were changed while it read them."""


def _open_data(job: TrialJob, config: TrialConfig) -> tuple[TrialConfig, DevelopmentData]:
    config = provide_data(config, job.data_source, expected=job.data_version)
    return config, open_once(config, expected=job.data_version)


def _train(
    job: TrialJob, config: TrialConfig, folder: Path, report: Report, start_group: StartGroup
) -> None:
    # A judged trial's last epoch is judged again; of others it is unknown which were sent.
    earlier = read_epochs(folder)
    for epoch in earlier[-1:] if job.is_judged else earlier:
        report(epoch)
    while not _train_on_same_data(job, config, folder, report, start_group):
        LOGGER.warning("its data were changed while it read them; the epoch is trained again.")


def _train_on_same_data(
    job: TrialJob,
    config: TrialConfig,
    folder: Path,
    report: Report,
    start_group: StartGroup,
) -> bool:
    """Trains to the end; returns False when the data changed on the way, which cost an epoch."""
    config, data = _open_data(job, config)
    opened = identify_files(config.data)

    def on_epoch_end(epoch: EpochReport, _: Checkpoint) -> None:
        # Looks at the files' times only: this is done after every epoch.
        if identify_files(config.data) != opened:
            raise DataChanged
        report(asdict(epoch))

    try:
        with start_group(job, config) as group:
            train_in_folder(
                config,
                data,
                folder,
                on_epoch_end=on_epoch_end,
                on_message=LOGGER.warning,
                group=group,
            )
    except DataChanged:
        _forget_last_epoch(folder)
        return False
    return True


def _forget_last_epoch(folder: Path) -> None:
    if epochs := read_epochs(folder):
        last = int(epochs[-1]["epoch"])
        checkpoint_path(folder / "checkpoints", last).unlink(missing_ok=True)


def _summarize(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:500]}" if lines else type(error).__name__
