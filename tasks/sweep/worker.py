"""Trains one trial of a sweep in the process that received its job."""

import contextlib
import logging
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dml_core.config import TrialConfig
from dml_core.data.prepared import DevelopmentData
from dml_core.devices import choose_device, describe_device
from dml_core.process_memory import prepare_memory
from dml_core.training.checkpoint import Checkpoint
from dml_core.training.ddp import WorkerGroup, WorkerLost
from dml_core.training.in_folder import (
    has_usable_result,
    train_other_rank,
    train_with_journal,
)
from dml_core.training.kept import open_checkpoints
from dml_core.training.report import EpochReport
from dml_core.trials.bucket import TrialTaken
from dml_core.trials.journal import Journal, read_device
from dml_core.trials.spec import spec_from_plain
from dml_core.trials.store import open_store
from tasks.machine_faults import check_room, raise_machine_fault
from tasks.sweep.job import MESSAGES, TrialJob, check_code
from tasks.sweep.node_data import open_once, provide_data
from tasks.sweep.watchdog import Watchdog
from tasks.versioning.restoring import identify_files

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
    """Yields a list that receives the project's own warnings within the block.

    The driver logs them: the log of a worker is deleted with its cluster.
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
    """Returns the entry for the next report, and empties the list."""
    taken = list(messages)
    messages.clear()
    return {MESSAGES: taken} if taken else {}


LOGGER = logging.getLogger(__name__)

Report = Callable[[dict[str, Any]], None]

StartGroup = Callable[[TrialJob, TrialConfig], AbstractContextManager[WorkerGroup | None]]


def _train_alone(job: TrialJob, config: TrialConfig) -> AbstractContextManager[WorkerGroup | None]:
    return nullcontext()


def work_on_trial(job: TrialJob, *, report: Report, start_group: StartGroup = _train_alone) -> None:
    """Trains a trial to its end, or resumes it, and leaves result.json in its journal.

    An error of the training is the trial's outcome. A fault of the machine is raised, so that the
    driver sees it like the death of this process.

    Args:
        job: the trial.
        report: receives an epoch's report after each epoch, and first the earlier epochs of a
            trial that resumes, which may not have reached the driver.
        start_group: starts the other ranks of a trial that has several.

    Raises:
        WorkerLost: when a rank is gone; the trial can resume with new workers.
        TrialTaken: when another worker has begun the trial since.
        MachineFault: when the store takes no more files.
        OutOfMemory: when this process gets no more memory.
        OtherCode: when this process has other code or libraries than the sweep.
    """
    journal, spec = Journal(open_store(job.store), job.key), spec_from_plain(job.spec)
    if has_usable_result(journal, spec):
        return
    _enter_working_folder(job)
    check_code(job.code, job.libraries, spec.config)
    prepare_memory()
    limit = f"sweep.trial_timeout_seconds={job.timeout_seconds:g}"
    reason, note = f"no epoch finished within {limit}.", Path(job.note)
    try:
        with (
            Watchdog(job.timeout_seconds, note=note, reason=reason) as watchdog,
            collected_warnings() as messages,
            _locked(journal, watchdog),
        ):
            if not has_usable_result(journal, spec):
                # On a full disk no attempt begins.
                check_room(Path(job.store))
                journal.reopen()
                note.unlink(missing_ok=True)

                def send(epoch: dict[str, Any]) -> None:
                    # The driver may take any time to answer.
                    with watchdog.paused():
                        report({**epoch, **take_messages(messages)})

                _restart_on_other_device(journal, spec.config)
                _report_earlier(job, journal, send)
                while not _train_on_same_data(job, spec.config, journal, send, start_group):
                    LOGGER.warning("its data changed while it read them; the epoch is repeated.")
    except (WorkerLost, TrialTaken):
        raise
    except Exception as error:
        raise_machine_fault(error, Path(job.store))
        reason, trace = _summarize(error), traceback.format_exc()
        journal.write_failure(spec.config, reason=reason, traceback=trace)


def work_as_other_rank(job: TrialJob, *, join: Callable[[TrialConfig], WorkerGroup]) -> None:
    """Trains as a rank above 0; rank 0 is in `work_on_trial`.

    Args:
        job: the trial.
        join: returns this rank's view of the group once all ranks are there.

    Raises:
        WorkerLost: when another rank is gone.
        OtherCode: when this process has other code or libraries than the sweep.
    """
    spec = spec_from_plain(job.spec)
    _enter_working_folder(job)
    check_code(job.code, job.libraries, spec.config)
    prepare_memory()
    config, data = _open_data(job, spec.config)
    journal = Journal(open_store(job.store), job.key)
    group = join(config)
    try:
        train_other_rank(config, data, journal, group=group)
    finally:
        group.close()


@contextmanager
def _locked(journal: Journal, watchdog: Watchdog) -> Iterator[None]:
    """Holds the trial's lock; waiting for it is not hanging.

    Another study may train the same trial, and the worker of a killed driver may live for some
    seconds more.
    """
    with contextlib.ExitStack() as stack:
        with watchdog.paused():
            stack.enter_context(journal.lock())
        yield


def _restart_on_other_device(journal: Journal, config: TrialConfig) -> None:
    """Starts a trial from its first epoch if another kind of device began it."""
    device = describe_device(choose_device(config.training.device))
    before = read_device(journal.epochs())
    if before and before != device:
        LOGGER.warning("it was begun on %s and is trained anew on %s.", before, device)
        journal.restart()


def _enter_working_folder(job: TrialJob) -> None:
    if Path(job.working_folder).is_dir():
        os.chdir(job.working_folder)


class DataChanged(Exception):
    """The data changed while a trial read them."""


def _open_data(job: TrialJob, config: TrialConfig) -> tuple[TrialConfig, DevelopmentData]:
    config = provide_data(config, job.data_source, expected=job.data_version)
    return config, open_once(config, expected=job.data_version)


def _report_earlier(job: TrialJob, journal: Journal, report: Report) -> None:
    # The last epoch of a judged trial is judged again; for others it is unknown which were sent.
    earlier = journal.epochs()
    for epoch in earlier[-1:] if job.is_judged else earlier:
        report(epoch)


def _train_on_same_data(
    job: TrialJob, config: TrialConfig, journal: Journal, report: Report, start_group: StartGroup
) -> bool:
    """Trains to the end; returns False if the data changed, which costs an epoch."""
    config, data = _open_data(job, config)
    opened = identify_files(config.data)

    def on_epoch_end(epoch: EpochReport, _: Checkpoint) -> None:
        # Only compares the files' times: this is done after every epoch.
        if identify_files(config.data) != opened:
            raise DataChanged
        report(asdict(epoch))

    try:
        with start_group(job, config) as group:
            train_with_journal(
                config,
                data,
                journal,
                on_epoch_end=on_epoch_end,
                on_message=LOGGER.warning,
                group=group,
                is_judged=job.is_judged,
            )
    except DataChanged:
        _remove_last_checkpoint(journal)
        return False
    return True


def _remove_last_checkpoint(journal: Journal) -> None:
    if epochs := journal.epochs():
        open_checkpoints(journal).remove(int(epochs[-1]["epoch"]))


def _summarize(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:500]}" if lines else type(error).__name__
