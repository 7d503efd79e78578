"""Brings MLflow up to date with the files of a sweep's trials.

The files say what happened; MLflow is a reader of them. What the store has is compared with the
files, and what it lacks is sent. Doing it twice changes nothing, so it is also the remedy for a
record that was deleted, replaced, or written in part.
"""

import json
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any, get_args

from dml_core.studies.resolved import ResolvedStudy
from dml_core.trials.journal import EPOCHS_FILE, RESULT_FILE, SPEC_FILE, Journal
from dml_core.trials.spec import TrialRecord, TrialSpec, TrialStatus
from dml_core.trials.store import TrialStore
from tasks.tracking.address import Tracking
from tasks.tracking.identity import (
    SweepFacts,
    SweepIdentity,
    find_differing_keys,
    git_tags,
    keep_numbers,
    make_trial_key,
    to_epoch_metrics,
    to_params,
    to_tags,
)
from tasks.tracking.runs import STATUS_TAG, STEP_METRIC, EpochNumbers, RunEnd, SweepRuns

MLFLOW_STATUS: dict[TrialStatus, str] = {
    "finished": "FINISHED",
    "pruned": "KILLED",
    "diverged": "FAILED",
    "collapsed": "FAILED",
    "failed": "FAILED",
}
INTERRUPTED = RunEnd("KILLED", "interrupted", "the sweep was stopped; the same command resumes it")
FINISHED = RunEnd("FINISHED", "finished", "")


@dataclass
class TrialState:
    """A trial as a sweep's driver knows it; its epochs are in its journal."""

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


class SweepSync:
    """Compares the runs of one sweep with its trials and sends what is missing."""

    def __init__(self, tracking: Tracking, study: ResolvedStudy, facts: SweepFacts) -> None:
        self.runs = SweepRuns(tracking, SweepIdentity.of(study, facts))
        self._facts = facts
        self._differs = ",".join(find_differing_keys(study))

    def sync_trial(self, trial: TrialState) -> None:
        """Brings the run of one trial up to date; every request may be repeated."""
        runs, spec, end = self.runs, trial.spec, trial.end
        epochs = _read_numbers(trial.journal, last=trial.record.epochs if trial.record else None)
        results = _list_results(trial.record)
        run_id = runs.open_nested(
            make_trial_key(spec.trial_id, spec.config),
            name=spec.trial_id,
            tags={
                **make_trial_tags(spec, self._facts, differs=self._differs),
                "dml.key": trial.journal.key,
            },
            time_ms=_changed_ms(trial.journal, SPEC_FILE),
        )
        # The end is written last, so a run with that end and the last epoch has all the others.
        if trial.record is not None and runs.has(run_id, end, {**results, **_last_loss(epochs)}):
            return
        if changed := runs.log_params(run_id, to_params(spec.config)):
            runs.set_tags(run_id, {"dml.params_changed": ",".join(changed)})
        runs.log_epochs(run_id, epochs)
        if end is not None:
            ended_ms = _changed_ms(trial.journal, RESULT_FILE) or _now_ms()
            runs.end(run_id, end, time_ms=ended_ms, metrics=results)
        elif runs.get_status(run_id) not in get_args(TrialStatus):
            # A trial that an earlier process finished is only reported again, and keeps its times.
            runs.set_running(run_id)

    def sync_parent(self, end: RunEnd | None, winners: str | None) -> str:
        """Brings the sweep's own run up to date; returns its id.

        Args:
            end: how the sweep ended; None while it runs.
            winners: content of winners.json; None where there are none yet.
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
            store: the journals; without them, as on another machine than the one that swept, the
                runs have no learning curves.
            winners: content of winners.json.
        """
        self.runs.load()
        for record in records:
            self.sync_trial(TrialState(record.spec, Journal(store, record.key), record))
        self.sync_parent(FINISHED, winners)


def describe_winners(winners: Mapping[str, Any]) -> str:
    """Returns the content of winners.json in the sweep's run."""
    plain = {arm: _to_plain(winner) for arm, winner in winners.items()}
    return json.dumps(plain, indent=2, sort_keys=True, default=str, ensure_ascii=False) + "\n"


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


def _read_numbers(journal: Journal, *, last: int | None) -> list[EpochNumbers]:
    """Returns the epochs of a journal, each with the time at which it ended.

    Args:
        journal: of the trial.
        last: epochs after it are left out: another study may have resumed a pruned trial.
    """
    reports = [report for report in journal.epochs() if last is None or report["epoch"] <= last]
    # The lines hold no times: the file's own is that of the last epoch, and each has its duration.
    ended_ms = _changed_ms(journal, EPOCHS_FILE) or _now_ms()
    numbers = []
    for report in reversed(reports):
        numbers.append(EpochNumbers(int(report["epoch"]), ended_ms, to_epoch_metrics(report)))
        seconds = float(report.get("train_seconds") or 0.0)
        ended_ms -= int(1000 * seconds) if math.isfinite(seconds) else 0
    return numbers[::-1]


def _last_loss(epochs: list[EpochNumbers]) -> dict[str, float]:
    metrics = epochs[-1].metrics if epochs else {}
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


def _changed_ms(journal: Journal, name: str) -> int | None:
    seconds = journal.changed_at(name)
    return None if seconds is None else int(seconds * 1000)


def _now_ms() -> int:
    return int(time.time() * 1000)


def _to_plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
