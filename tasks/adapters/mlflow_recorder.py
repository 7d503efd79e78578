"""Records a sweep in MLflow from its driver, without ever making it wait."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dml_core.config.pipeline import MlflowConfig
from dml_core.studies.resolved import ResolvedStudy
from dml_core.studies.trial_spec import TrialRecord, TrialSpec, TrialStatus
from dml_core.training.epochs_file import read_epochs
from tasks.adapters.mlflow_address import open_tracking
from tasks.adapters.mlflow_delivery import Delivery, replay_spools
from tasks.adapters.mlflow_identity import (
    SweepFacts,
    SweepIdentity,
    find_differing_keys,
    git_tags,
    make_trial_key,
    read_sweep_facts,
)
from tasks.adapters.mlflow_runs import STATUS_TAG, SweepRuns
from tasks.adapters.mlflow_spool import Spool
from tasks.adapters.mlflow_values import keep_numbers, to_epoch_metrics, to_params, to_tags

MLFLOW_STATUS: dict[TrialStatus, str] = {
    "finished": "FINISHED",
    "pruned": "KILLED",
    "diverged": "FAILED",
    "collapsed": "FAILED",
    "failed": "FAILED",
}
_INTERRUPTED = {
    "mlflow_status": "KILLED",
    "status": "interrupted",
    "reason": "the sweep was stopped; the same command goes on",
}


class SweepRecorder:
    """One experiment a study, a parent run a sweep, a nested run a trial.

    The calls write to a file on disk; a thread brings it to MLflow in batches. A server that is
    away holds nothing up, and a killed driver loses nothing: the next one sends what is left.
    """

    def __init__(
        self,
        config: MlflowConfig,
        *,
        folder: Path,
        project: Path = Path(),
        on_message: Callable[[str], None] = print,
        interval_seconds: float = 2.0,
    ) -> None:
        """Sets the recorder up; `start` begins.

        Args:
            config: which store, and how long the start and the end wait for it.
            folder: the sweep's working folder, to which each record's folder is relative.
            project: the project's folder, with the code and the local store.
            on_message: told when MLflow goes away, comes back or refuses something.
            interval_seconds: time between two batches.
        """
        self.config = config
        self.folder = folder
        self.project = project
        self._on_message = on_message
        self._interval_seconds = interval_seconds
        self._delivery: Delivery | None = None
        self._running: dict[str, TrialSpec] = {}
        self._opened: set[str] = set()
        self._seen_epochs: dict[str, set[int]] = {}
        self._is_finished = False

    def start(self, study: ResolvedStudy, facts: SweepFacts | None = None) -> str:
        """Opens the sweep's parent run, the old one where there is one; returns its id.

        Args:
            study: what is swept.
            facts: where its numbers come from; read from the project's folder where not given.

        Raises:
            TrackingError: when the store does not answer.
        """
        self._facts = facts or read_sweep_facts(study, project=self.project)
        self._differs = ",".join(find_differing_keys(study))
        self.tracking = open_tracking(self.config, project=self.project)
        identity = SweepIdentity.of(study, self._facts)
        self.runs = SweepRuns(self.tracking, identity)
        path = self.folder / f"mlflow-{identity.key[:12]}.jsonl"
        replay_spools(self.tracking, self.folder, leave=path, on_message=self._on_message)
        self.parent_run_id = self.runs.open_parent()
        self.runs.set_running(self.parent_run_id)
        self._spool = Spool(path, header={"identity": identity.to_dict()})
        self._delivery = Delivery(
            self.runs,
            self._spool,
            on_message=self._on_message,
            interval_seconds=self._interval_seconds,
        )
        self._delivery.start()
        return self.parent_run_id

    @property
    def experiment_id(self) -> str:
        """The study's experiment."""
        return self.runs.experiment_id

    def on_trial_start(self, spec: TrialSpec) -> None:
        """Opens a trial's run, or goes on with the one it has."""
        self._running[spec.trial_id] = spec
        self._open(spec, is_running=True)

    def on_epoch(self, spec: TrialSpec, report: Mapping[str, Any]) -> None:
        """Records an epoch; one that is recorded already changes nothing."""
        self._seen_epochs.setdefault(spec.trial_id, set()).add(int(report["epoch"]))
        self._append(
            "epoch",
            spec,
            epoch=int(report["epoch"]),
            metrics=to_epoch_metrics(report),
        )

    def on_trial_end(self, record: TrialRecord) -> None:
        """Records how a trial ended; also for trials that a former run finished."""
        spec = record.spec
        self._running.pop(spec.trial_id, None)
        if spec.trial_id not in self._opened:
            self._open(spec, is_running=False)
        self._catch_up(record)
        numbers = {
            "score": record.score,
            "best_epoch": record.best_epoch,
            "epochs": record.epochs,
            "train_seconds": record.train_seconds,
        }
        end = {
            "mlflow_status": MLFLOW_STATUS[record.status],
            "status": record.status,
            "reason": record.reason,
        }
        self._append("end", spec, metrics=keep_numbers(numbers), end=end)

    def finish(self, winners: Mapping[str, Any]) -> bool:
        """Ends the parent run with the winners; returns whether all of the record arrived."""
        plain = {arm: _to_plain(winner) for arm, winner in winners.items()}
        text = json.dumps(plain, indent=2, default=str, ensure_ascii=False)
        end = {"mlflow_status": "FINISHED", "status": "finished", "reason": ""}
        self._append("sweep", None, texts={"winners.json": text}, end=end)
        self._is_finished = True
        return self.close()

    def close(self) -> bool:
        """Sends what is left, also when the sweep was stopped; returns whether all arrived."""
        if self._delivery is None:
            return True
        if not self._is_finished:
            for spec in self._running.values():
                self._append("end", spec, metrics={}, end=_INTERRUPTED)
            self._append("sweep", None, texts={}, end=_INTERRUPTED)
        delivery, self._delivery = self._delivery, None
        return delivery.close(timeout_seconds=self.config.timeout_seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _open(self, spec: TrialSpec, *, is_running: bool) -> None:
        self._opened.add(spec.trial_id)
        self._append(
            "start",
            spec,
            tags=make_trial_tags(spec, self._facts, differs=self._differs),
            params=to_params(spec.config),
            is_running=is_running,
        )

    def _catch_up(self, record: TrialRecord) -> None:
        """Adds epochs that the trial has on disk and nobody told of: their driver was killed."""
        seen = self._seen_epochs.pop(record.spec.trial_id, set())
        for report in read_epochs(self.folder / record.folder):
            if report["epoch"] not in seen:
                self.on_epoch(record.spec, report)

    def _append(self, kind: str, spec: TrialSpec | None, **values: Any) -> None:
        event = {"kind": kind, "time_ms": int(time.time() * 1000), **values}
        if spec is not None:
            event["trial_id"] = spec.trial_id
            event["key"] = make_trial_key(spec.trial_id, spec.config)
        self._spool.append(event)


def make_trial_tags(spec: TrialSpec, facts: SweepFacts, *, differs: str) -> dict[str, str]:
    """Returns the tags by which a trial's run is found and compared."""
    content, split = facts.hashes_of(spec.config)
    return to_tags(
        {
            "study": spec.study,
            "arm": spec.arm,
            "stage": spec.stage,
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


def _to_plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
