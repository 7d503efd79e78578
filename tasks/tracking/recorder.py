"""Keeps MLflow up to date during a sweep, without ever making it wait."""

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dml_core.config.pipeline import MlflowConfig
from dml_core.studies.resolved import ResolvedStudy
from dml_core.trials.journal import Journal
from dml_core.trials.spec import TrialRecord, TrialSpec
from dml_core.trials.store import TrialStore
from tasks.tracking.address import describe_store, first_line, open_tracking, reopen
from tasks.tracking.identity import SweepFacts, make_trial_key, read_sweep_facts
from tasks.tracking.runs import RunEnd
from tasks.tracking.sync import FINISHED, INTERRUPTED, SweepSync, TrialState, describe_winners

LONGEST_WAIT_SECONDS = 30.0

# Answers that stay the same however often the request is repeated.
_FINAL_CODES = {
    "INVALID_PARAMETER_VALUE",
    "RESOURCE_DOES_NOT_EXIST",
    "INVALID_STATE",
    "PERMISSION_DENIED",
}


class SweepRecorder:
    """One experiment a study, a parent run a sweep, a nested run a trial.

    The calls only note which trials have changed. A thread brings their runs up to date from the
    trials' files. A store that is away or loses its record holds nothing up: all that it lacks is
    sent once it answers, at the latest at the end or by the next run.
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
        """Sets the recorder up; `start` begins.

        Args:
            config: which store, and how long the start and the end wait for it.
            store: the journals of the trials.
            key_of: returns a trial's key.
            project: the project's folder, with the code and the local store.
            on_message: gets a line when MLflow goes away, comes back or lacks something.
            interval_seconds: time between two rounds.
        """
        self.config = config
        self.store = store
        self._key_of = key_of
        self.project = project
        self._on_message = on_message
        self._interval_seconds = interval_seconds
        self._trials: dict[str, TrialState] = {}
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
        """Opens the sweep's parent run, the old one where there is one; returns its id.

        Args:
            study: what is swept.
            facts: where its numbers come from; read from the project's folder where not given.

        Raises:
            TrackingError: when the store does not answer.
        """
        facts = facts or read_sweep_facts(study, project=self.project)
        self.tracking = open_tracking(self.config, project=self.project)
        self._sync = SweepSync(self.tracking, study, facts)
        self._sync.runs.load()
        self.parent_run_id = self._sync.sync_parent(None, None)
        self._thread = threading.Thread(target=self._run, name="mlflow-sync", daemon=True)
        self._thread.start()
        return self.parent_run_id

    @property
    def experiment_id(self) -> str:
        """The study's experiment."""
        return self._sync.runs.experiment_id

    @property
    def is_up_to_date(self) -> bool:
        """Whether every change so far has arrived."""
        with self._lock:
            return not self._changed and not self._is_away

    def on_trial_start(self, spec: TrialSpec) -> None:
        """Opens a trial's run, or resumes the one it has."""
        self._note(spec)

    def on_epoch(self, spec: TrialSpec, report: Mapping[str, Any]) -> None:
        """Notes that a trial has another epoch in its folder."""
        self._note(spec)

    def on_trial_end(self, record: TrialRecord) -> None:
        """Records how a trial ended; also for trials that an earlier process finished."""
        self._note(record.spec, record)

    def finish(self, winners: Mapping[str, Any]) -> bool:
        """Ends the parent run with the winners; returns whether the record is complete."""
        self._winners = describe_winners(winners)
        self._end = FINISHED
        return self.close()

    def close(self) -> bool:
        """Compares the whole record with the trials and sends what is missing.

        Returns whether it is complete. Trials that have not ended are marked as interrupted.
        """
        if self._thread is None:
            return True
        if self._end is None:
            self._end = INTERRUPTED
            for trial in self._trials.values():
                trial.is_interrupted = trial.record is None
        thread, self._thread = self._thread, None
        self._progress = time.monotonic()
        self._closing.set()
        while thread.is_alive() and self._has_time():
            thread.join(0.1)
        # A thread that hangs in a request must not write beside the stages that follow.
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _note(self, spec: TrialSpec, record: TrialRecord | None = None) -> None:
        key = make_trial_key(spec.trial_id, spec.config)
        with self._lock:
            if key not in self._trials:
                journal = Journal(self.store, self._key_of(spec))
                self._trials[key] = TrialState(spec, journal)
            if record is not None:
                self._trials[key].record = record
            self._changed.add(key)

    def _is_over(self) -> bool:
        return self._is_given_up or not self._has_time()

    def _has_time(self) -> bool:
        return time.monotonic() - self._progress < self.config.timeout_seconds

    def _run(self) -> None:
        """Syncs what has changed until closed and, then, everything until the time is over."""
        wait = self._interval_seconds
        while not self._closing.wait(wait):
            wait = (
                self._interval_seconds
                if self._try(self._sync_changed)
                else min(2 * wait, LONGEST_WAIT_SECONDS)
            )
        while not (is_complete := self._try(self._sync_all)) and not self._is_over():
            # Nothing else waits in the end, so a short pause between tries is enough.
            time.sleep(0.2)
        self._is_complete = is_complete

    def _try(self, sync: Callable[[], None]) -> bool:
        try:
            sync()
        except Exception as error:
            self._say_away(error)
            # The record may have been deleted or replaced: look at all of it again.
            with self._lock:
                self._changed |= self._trials.keys()
            self._sync.runs.forget()
            return False
        if self._is_away:
            self._is_away = False
            self._on_message("MLflow answers again; nothing was lost.")
        return True

    def _sync_all(self) -> None:
        """Compares the whole record with the trials, whatever was sent before."""
        reopen(self.tracking)
        self._sync.runs.forget()
        self._sync.runs.load()
        self._refused.clear()
        with self._lock:
            self._changed |= self._trials.keys()
        self._sync_changed()
        self.parent_run_id = self._sync.sync_parent(self._end, self._winners)

    def _sync_changed(self) -> None:
        with self._lock:
            changed = sorted(self._changed)
        if changed and self._is_away:
            reopen(self.tracking)
            self._sync.runs.load()
        for key in changed:
            if self._is_given_up:
                raise TimeoutError("the sweep has ended without waiting for MLflow")
            with self._lock:
                self._changed.discard(key)
                trial = self._trials[key]
            try:
                self._sync_trial(trial)
            except Exception:
                with self._lock:
                    self._changed.add(key)
                raise
            self._progress = time.monotonic()

    def _sync_trial(self, trial: TrialState) -> None:
        from mlflow.exceptions import MlflowException

        for is_last in (False, True):
            try:
                self._sync.sync_trial(trial)
                return
            except MlflowException as error:
                if error.error_code not in _FINAL_CODES:
                    raise
                # A run may have been deleted meanwhile: look again before giving up.
                self._sync.runs.forget()
                if is_last:
                    self._refused[trial.spec.trial_id] = first_line(error)

    def _say_away(self, error: Exception) -> None:
        if not self._is_away:
            self._is_away = True
            self._on_message(
                f"MLflow does not take the record now ({first_line(error, 200)}) "
                "The sweep continues, and the record follows."
            )
