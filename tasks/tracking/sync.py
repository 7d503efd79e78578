"""Brings MLflow up to date with the journals of a sweep's trials, during the sweep and after it.

The journals say what happened; MLflow is a reader of them. `SweepSync` compares the runs of a sweep
with the journals and sends what is missing. A second call sends nothing, so it also repairs a
record that was deleted, replaced or written in part. `SweepRecorder` calls it from a thread while
trials run, and never makes the sweep wait.
"""

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any, Self, get_args

from dml_core.config.pipeline import MlflowConfig
from dml_core.studies.resolved import ResolvedStudy
from dml_core.trials.journal import EPOCHS_FILE, RESULT_FILE, SPEC_FILE, Journal
from dml_core.trials.spec import TrialRecord, TrialSpec, TrialStatus
from dml_core.trials.store import TrialStore
from tasks.tracking.address import Tracking, describe_store, first_line, open_tracking, reopen
from tasks.tracking.identity import (
    SweepFacts,
    SweepIdentity,
    find_differing_keys,
    git_tags,
    keep_numbers,
    make_trial_key,
    read_sweep_facts,
    to_epoch_metrics,
    to_params,
    to_tags,
)
from tasks.tracking.runs import STATUS_TAG, STEP_METRIC, RunEnd, SweepRuns

PAUSE = 3.0
"""While trials run, the record pauses for this many times as long as it worked: it shares Python's
lock with the driver, which would slow down as the record of short trials falls behind."""
LONGEST_WAIT_SECONDS = 30.0

MLFLOW_STATUS: dict[TrialStatus, str] = {
    "finished": "FINISHED",
    "pruned": "KILLED",
    "diverged": "FAILED",
    "collapsed": "FAILED",
    "failed": "FAILED",
}
INTERRUPTED = RunEnd("KILLED", "interrupted", "the sweep was stopped; the same command resumes it")
FINISHED = RunEnd("FINISHED", "finished", "")

# Errors that a retry does not change.
_FINAL_CODES = {
    "INVALID_PARAMETER_VALUE",
    "RESOURCE_DOES_NOT_EXIST",
    "INVALID_STATE",
    "PERMISSION_DENIED",
}


@dataclass
class TrialState:
    """A trial as the sweep's driver knows it; its epochs are in its journal."""

    spec: TrialSpec
    journal: Journal
    record: TrialRecord | None = None
    """How it ended; None for a trial that runs or was interrupted."""
    is_interrupted: bool = False

    @property
    def end(self) -> RunEnd | None:
        """How its run ends; None while it runs."""
        if self.record is None:
            return INTERRUPTED if self.is_interrupted else None
        record = self.record
        return RunEnd(MLFLOW_STATUS[record.status], record.status, record.reason)

    def read_epochs(self) -> list[dict[str, Any]]:
        """Returns the journal's epochs, for an ended trial up to its last one.

        Another study may have resumed a pruned trial, and its journal is longer then.
        """
        epochs = self.journal.epochs()
        return [e for e in epochs if self.record is None or e["epoch"] <= self.record.epochs]

    def changed_ms(self, name: str) -> int | None:
        """Returns when a file of the journal changed, in milliseconds; None where it is missing."""
        seconds = self.journal.changed_at(name)
        return None if seconds is None else int(seconds * 1000)


class SweepSync:
    """Compares the runs of one sweep with its journals and sends what is missing."""

    def __init__(self, tracking: Tracking, study: ResolvedStudy, facts: SweepFacts) -> None:
        self.runs = SweepRuns(tracking, SweepIdentity.of(study, facts))
        self._facts = facts
        self._differs = ",".join(find_differing_keys(study))

    def sync_trial(self, trial: TrialState) -> None:
        """Brings the run of one trial up to date; every request may be repeated."""
        runs, spec, end = self.runs, trial.spec, trial.end
        epochs, results = trial.read_epochs(), _list_results(trial.record)
        run_id = runs.open_nested(
            make_trial_key(spec.trial_id, spec.config),
            name=spec.trial_id,
            tags={
                **make_trial_tags(spec, self._facts, differs=self._differs),
                "dml.key": trial.journal.key,
            },
            time_ms=trial.changed_ms(SPEC_FILE),
        )
        # The end is sent last, so a run with this end and the last epoch has all other epochs.
        if trial.record is not None and runs.has(run_id, end, {**results, **_last_loss(epochs)}):
            return
        if changed := runs.log_params(run_id, to_params(spec.config)):
            runs.set_tags(run_id, {"dml.params_changed": ",".join(changed)})
        runs.log_epochs(run_id, epochs, ended_ms=trial.changed_ms(EPOCHS_FILE) or _now_ms())
        if end is not None:
            ended_ms = trial.changed_ms(RESULT_FILE) or _now_ms()
            runs.end(run_id, end, time_ms=ended_ms, metrics=results)
        elif runs.get_status(run_id) not in get_args(TrialStatus):
            # A trial that an earlier process finished is only reported again, and keeps its times.
            runs.set_running(run_id)
        runs.flush(run_id)

    def sync_parent(self, end: RunEnd | None, winners: str | None) -> str:
        """Brings the sweep's own run up to date; returns its id.

        Args:
            end: how the sweep ended; None while it runs.
            winners: content of winners.json; None before there are winners.
        """
        run_id = self.runs.open_parent()
        if end is None:
            self.runs.set_running(run_id)
        elif not self.runs.has(run_id, end, {}):
            if winners is not None:
                self.runs.client.log_text(run_id, winners, "winners.json")
            self.runs.end(run_id, end, time_ms=_now_ms())
        return run_id

    def sync_finished(
        self, records: Iterable[TrialRecord], *, store: TrialStore, winners: str
    ) -> None:
        """Brings all runs of a finished sweep up to date.

        Args:
            records: the trials, as in trials.parquet.
            store: the journals; without them, as on a machine other than the one that swept, the
                runs have no learning curves.
            winners: content of winners.json.
        """
        self.runs.load()
        for record in records:
            self.sync_trial(TrialState(record.spec, Journal(store, record.key), record))
        self.sync_parent(FINISHED, winners)


class SweepRecorder:
    """Keeps MLflow up to date during a sweep: a run for each trial, nested in the sweep's run.

    The callbacks only note which trials have changed; a thread syncs these from their journals. An
    unavailable store, or one that loses its record, delays nothing: all that it lacks is sent once
    it answers, at the end of the sweep, or by the next run.
    """

    def __init__(
        self,
        config: MlflowConfig,
        *,
        store: TrialStore,
        key_of: Callable[[TrialSpec], str],
        project: Path = Path(),
        on_message: Callable[[str], None] = print,
        interval_seconds: float = 2.0,
    ) -> None:
        """Creates the recorder; `start` begins.

        Args:
            config: the tracking store, and how long the start and the end wait for it.
            store: the journals of the trials.
            key_of: returns a trial's key.
            project: the project's folder, with the code and the local tracking store.
            on_message: gets a line when MLflow becomes unavailable, answers again or lacks data.
            interval_seconds: time between two rounds.
        """
        self.config = config
        self.store = store
        self._key_of = key_of
        self.project = project
        self._on_message = on_message
        self._interval_seconds = interval_seconds
        self._trials: dict[str, TrialState] = {}
        self._keys: dict[str, tuple[TrialSpec, str]] = {}
        """The key of each trial in `_trials`, by the trial's id: computing it again is slow."""
        self._changed: set[str] = set()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._winners: str | None = None
        self._end: RunEnd | None = None
        self._is_away = False
        self._is_complete = False
        self._is_given_up = False
        self._refused: dict[str, str] = {}
        self._progress = time.monotonic()

    def start(self, study: ResolvedStudy, facts: SweepFacts | None = None) -> str:
        """Opens the sweep's parent run, or finds the existing one; returns its id.

        Args:
            study: the study of the sweep.
            facts: its data, code and libraries; by default read from the project's folder.

        Raises:
            TrackingError: when the store does not answer.
        """
        facts = facts or read_sweep_facts(study, project=self.project)
        self.tracking = open_tracking(self.config, project=self.project)
        self._sync = SweepSync(self.tracking, study, facts)
        self._sync.runs.load()
        self.parent_run_id = self._sync.sync_parent(None, None)
        thread = threading.Thread(target=self._run, name="mlflow-sync", daemon=True)
        with self._lock:
            # A sweep that ended by an error may have closed the recorder while the store was slow.
            if not self._closing.is_set():
                self._thread = thread
                thread.start()
        return self.parent_run_id

    @property
    def experiment_id(self) -> str:
        """The study's experiment."""
        return self._sync.runs.experiment_id

    def on_trial_start(self, spec: TrialSpec) -> None:
        """Notes a trial that starts or resumes."""
        self._note(spec)

    def on_epoch(self, spec: TrialSpec, report: Mapping[str, Any]) -> None:
        """Notes that a trial's journal has another epoch."""
        self._note(spec)

    def on_trial_end(self, record: TrialRecord) -> None:
        """Notes how a trial ended, in this process or in an earlier one."""
        self._note(record.spec, record)

    def finish(self, winners: Mapping[str, Any]) -> bool:
        """Ends the parent run with the winners; returns whether the record is complete."""
        self._winners = _describe_winners(winners)
        self._end = FINISHED
        return self.close()

    def close(self) -> bool:
        """Syncs the whole record once more; returns whether it is complete.

        Trials that have not ended are marked as interrupted.
        """
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is None:
                self._closing.set()
                return True
        if self._end is None:
            self._end = INTERRUPTED
            for trial in self._trials.values():
                trial.is_interrupted = trial.record is None
        self._progress = time.monotonic()
        self._closing.set()
        while thread.is_alive() and self._has_time():
            thread.join(0.1)
        # A thread that hangs in a request must not write during the following stages.
        self._is_given_up = thread.is_alive()
        if not self._is_complete:
            self._on_message(
                f"MLflow's record in {describe_store(self.tracking)} is not complete. Nothing is "
                f"lost: it is in {self.store.location}, and the same command sends it when MLflow "
                "is back."
            )
        if self._refused:
            trial_id, reason = next(iter(self._refused.items()))
            self._on_message(
                f"MLflow refuses the record of {len(self._refused)} trial(s), such as {trial_id}: "
                f"{reason} Their files are in {self.store.location}."
            )
        return self._is_complete and not self._refused

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _note(self, spec: TrialSpec, record: TrialRecord | None = None) -> None:
        known = self._keys.get(spec.trial_id)
        if known is None or known[0] != spec:
            known = spec, make_trial_key(spec.trial_id, spec.config)
            self._keys[spec.trial_id] = known
        key = known[1]
        with self._lock:
            if key not in self._trials:
                journal = Journal(self.store, self._key_of(spec))
                self._trials[key] = TrialState(spec, journal)
            if record is not None:
                self._trials[key].record = record
            self._changed.add(key)

    def _has_time(self) -> bool:
        return time.monotonic() - self._progress < self.config.timeout_seconds

    def _run(self) -> None:
        """Syncs changed trials until closed, then everything until it succeeds or time is up."""
        wait = self._interval_seconds
        while not self._closing.wait(wait):
            is_done = self._sync_changed()
            wait = self._interval_seconds if is_done else min(2 * wait, LONGEST_WAIT_SECONDS)
        while not (is_done := self._sync_changed(everything=True)):
            if self._is_given_up or not self._has_time():
                break
            # The sweep waits for this, so retries follow quickly.
            time.sleep(0.2)
        self._is_complete = is_done

    def _sync_changed(self, *, everything: bool = False) -> bool:
        """Syncs the trials that have changed; returns whether the store took all.

        Args:
            everything: sync all trials and the sweep's own run, whatever was sent before.
        """
        try:
            if everything or (self._is_away and self._changed):
                reopen(self.tracking)
                self._sync.runs.forget()
                self._sync.runs.load()
            if everything:
                self._refused.clear()
                self._mark_all_changed()
            with self._lock:
                changed = sorted(self._changed)
            for key in changed:
                if self._is_given_up:
                    return False
                # Before the sync, so that a change during the sync is noted again.
                with self._lock:
                    self._changed.discard(key)
                started = time.monotonic()
                self._sync_trial(self._trials[key])
                self._progress = time.monotonic()
                if not everything:
                    self._closing.wait(PAUSE * (self._progress - started))
            if everything:
                self.parent_run_id = self._sync.sync_parent(self._end, self._winners)
        except Exception as error:
            self._report_away(error)
            # The record may have been deleted or replaced: compare all of it again.
            self._mark_all_changed()
            self._sync.runs.forget()
            return False
        if self._is_away:
            self._is_away = False
            self._on_message("MLflow answers again; nothing was lost.")
        return True

    def _sync_trial(self, trial: TrialState) -> None:
        from mlflow.exceptions import MlflowException

        for is_last in (False, True):
            try:
                self._sync.sync_trial(trial)
                return
            except MlflowException as error:
                if error.error_code not in _FINAL_CODES:
                    raise
                # A run may have been deleted: search for it again before giving up.
                self._sync.runs.forget()
                if is_last:
                    self._refused[trial.spec.trial_id] = first_line(error)

    def _mark_all_changed(self) -> None:
        with self._lock:
            self._changed |= self._trials.keys()

    def _report_away(self, error: Exception) -> None:
        if not self._is_away:
            self._is_away = True
            self._on_message(
                f"MLflow does not take the record now ({first_line(error, 200)}) "
                "The sweep continues, and the record follows."
            )


def make_trial_tags(spec: TrialSpec, facts: SweepFacts, *, differs: str) -> dict[str, str]:
    """Returns the tags by which a trial's run is found and compared."""
    content, split = facts.hashes_of(spec.config)
    return to_tags(
        {
            "study": spec.study,
            "arm": spec.arm,
            "phase": spec.phase,
            "number": spec.number,
            "seed": spec.config.seed,
            "fold": spec.config.data.fold,
            "differs": differs,
            "data_hash": content,
            "split_hash": split,
            STATUS_TAG: "running",
            **git_tags(facts),
        }
    )


def _last_loss(epochs: list[dict[str, Any]]) -> dict[str, float]:
    metrics = to_epoch_metrics(epochs[-1]) if epochs else {}
    return {STEP_METRIC: metrics[STEP_METRIC]} if STEP_METRIC in metrics else {}


def _list_results(record: TrialRecord | None) -> dict[str, float]:
    if record is None:
        return {}
    return keep_numbers(
        {
            "score": record.score,
            "best_epoch": record.best_epoch,
            "epochs": record.epochs,
            "train_seconds": record.train_seconds,
        }
    )


def _describe_winners(winners: Mapping[str, Any]) -> str:
    """Returns the content of winners.json in the sweep's run."""
    plain = {arm: _to_plain(winner) for arm, winner in winners.items()}
    return json.dumps(plain, indent=2, sort_keys=True, default=str, ensure_ascii=False) + "\n"


def _to_plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def _now_ms() -> int:
    return int(time.time() * 1000)
