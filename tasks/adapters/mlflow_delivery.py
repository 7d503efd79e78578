"""Brings events from the spool to MLflow, in the background, for as long as that takes."""

import threading
import time
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, get_args

from dml_core.studies.trial_spec import TrialStatus
from tasks.adapters.mlflow_address import Tracking, hide_credentials
from tasks.adapters.mlflow_identity import SweepIdentity
from tasks.adapters.mlflow_runs import EpochNumbers, SweepRuns
from tasks.adapters.mlflow_spool import Event, Spool, read_header

CHUNK = 200
LONGEST_WAIT_SECONDS = 30.0

# Answers that stay the same however often the request is repeated.
_FINAL_CODES = {
    "INVALID_PARAMETER_VALUE",
    "RESOURCE_DOES_NOT_EXIST",
    "INVALID_STATE",
    "PERMISSION_DENIED",
}


class Delivery(threading.Thread):
    """Sends what a spool holds, batch after batch, and waits where the server is away."""

    def __init__(
        self,
        runs: SweepRuns,
        spool: Spool,
        *,
        on_message: Callable[[str], None],
        interval_seconds: float = 2.0,
    ) -> None:
        super().__init__(name="mlflow-delivery", daemon=True)
        self.runs = runs
        self.spool = spool
        self.on_message = on_message
        self.interval_seconds = interval_seconds
        self._is_away = False
        self._closing = threading.Event()
        self._deadline = float("inf")
        self._refused = 0

    def run(self) -> None:
        """Sends until closed and, then, until nothing is left or the time is over."""
        wait = self.interval_seconds
        while not self._closing.is_set() or self._has_work_and_time():
            try:
                self.deliver()
                wait = self.interval_seconds
            except Exception as error:
                self._say_away(error)
                # What was on its way may or may not have arrived.
                self.runs.forget()
                wait = min(2 * wait, LONGEST_WAIT_SECONDS)
            if self._closing.wait(wait):
                # Nothing else waits in the end, so a short pause between tries is enough.
                time.sleep(0.2)

    def _has_work_and_time(self) -> bool:
        return time.monotonic() < self._deadline and not self.spool.is_drained()

    def deliver(self) -> None:
        """Sends all that the spool holds now; raises where the server is away."""
        while True:
            events, position = self.spool.read(limit=CHUNK)
            if not events:
                return
            apply_events(self.runs, events, on_refused=self._keep_refused)
            self.spool.acknowledge(position)
            if self._is_away:
                self._is_away = False
                self.on_message("MLflow answers again; nothing was lost.")

    def close(self, *, timeout_seconds: float) -> bool:
        """Sends the rest; returns whether everything arrived within the time.

        What did not stays in the spool, and the next run sends it.
        """
        self._deadline = time.monotonic() + timeout_seconds
        self._closing.set()
        self.join(timeout_seconds)
        is_complete = not self.is_alive() and self.spool.is_drained()
        if is_complete:
            self.spool.remove()
        else:
            self.on_message(
                f"MLflow at {hide_credentials(self.runs.tracking.uri)} did not take all of the "
                f"record. The rest waits in {self.spool.path}; the same command sends it when "
                "MLflow is back."
            )
        return is_complete

    def _say_away(self, error: Exception) -> None:
        if not self._is_away:
            self._is_away = True
            reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
            self.on_message(
                f"MLflow does not take the record now ({hide_credentials(reason)}). "
                "The sweep goes on, and the record follows."
            )

    def _keep_refused(self, events: list[Event], error: Exception) -> None:
        self._refused += 1
        path = self.spool.path.with_suffix(".refused.jsonl")
        refused = Spool(path, header={"refused": True})
        for event in events:
            refused.append({**event, "refused_because": str(error)[:500]})
        if self._refused == 1:
            self.on_message(f"MLflow refuses part of the record: {error} It is kept in {path}.")


def replay_spools(
    tracking: Tracking, folder: Path, *, leave: Path, on_message: Callable[[str], None]
) -> None:
    """Sends what former sweeps left in a folder; `leave` is the spool in use now."""
    for path in sorted(folder.glob("mlflow-*.jsonl")):
        header = read_header(path)
        if path == leave or header is None or "identity" not in header:
            continue
        runs = SweepRuns(tracking, SweepIdentity.from_dict(header["identity"]))
        spool = Spool(path, header=header)
        try:
            Delivery(runs, spool, on_message=on_message).deliver()
            spool.remove()
        except Exception as error:
            on_message(f"{path} could not be sent to MLflow ({error}); it waits for the next run.")


def apply_events(
    runs: SweepRuns,
    events: list[Event],
    *,
    on_refused: Callable[[list[Event], Exception], None],
) -> None:
    """Writes events into MLflow; those that it will never take go to `on_refused`."""
    from mlflow.exceptions import MlflowException

    for group in _group(events):
        try:
            _apply_twice(runs, group)
        except MlflowException as error:
            if error.error_code not in _FINAL_CODES:
                raise
            on_refused(group, error)


def _apply_twice(runs: SweepRuns, group: list[Event]) -> None:
    from mlflow.exceptions import MlflowException

    try:
        _apply(runs, group)
    except MlflowException as error:
        if error.error_code not in _FINAL_CODES:
            raise
        # A run may have been removed by hand meanwhile: look again before giving up.
        runs.forget()
        _apply(runs, group)


def _group(events: list[Event]) -> Iterator[list[Event]]:
    """Yields events to be written together: epochs of a trial between two other events."""
    for is_epoch, block in groupby(events, key=lambda event: event["kind"] == "epoch"):
        if not is_epoch:
            yield from ([event] for event in block)
            continue
        by_trial: dict[str, list[Event]] = {}
        for event in block:
            by_trial.setdefault(event["key"], []).append(event)
        yield from by_trial.values()


def _apply(runs: SweepRuns, group: list[Event]) -> None:
    _WRITERS[group[0]["kind"]](runs, group)


def _write_start(runs: SweepRuns, group: list[Event]) -> None:
    event = group[0]
    run_id = runs.open_nested(
        event["key"], name=event["trial_id"], tags=event["tags"], time_ms=event["time_ms"]
    )
    if changed := runs.log_params(run_id, event["params"]):
        runs.set_tags(run_id, {"dml.params_changed": ",".join(changed)})
    # A trial that a former run finished is only told of again, and keeps its times.
    if event["is_running"] and runs.get_status(run_id) not in get_args(TrialStatus):
        runs.set_running(run_id)


def _write_epochs(runs: SweepRuns, group: list[Event]) -> None:
    epochs = [EpochNumbers(e["epoch"], e["time_ms"], e["metrics"]) for e in group]
    runs.log_epochs(_trial_run(runs, group[0]), epochs)


def _write_end(runs: SweepRuns, group: list[Event]) -> None:
    event = group[0]
    run_id = _trial_run(runs, event)
    runs.end(run_id, **event["end"], time_ms=event["time_ms"], metrics=event["metrics"])


def _write_sweep(runs: SweepRuns, group: list[Event]) -> None:
    event = group[0]
    run_id = runs.open_parent(time_ms=event["time_ms"])
    for name, text in event["texts"].items():
        runs.client.log_text(run_id, text, name)
    runs.end(run_id, **event["end"], time_ms=event["time_ms"])


def _trial_run(runs: SweepRuns, event: Event) -> str:
    tags = {"study": runs.identity.study}
    return runs.open_nested(event["key"], name=event["trial_id"], tags=tags)


_WRITERS: dict[str, Callable[[SweepRuns, list[Event]], Any]] = {
    "start": _write_start,
    "epoch": _write_epochs,
    "end": _write_end,
    "sweep": _write_sweep,
}
