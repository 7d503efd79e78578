"""The runs of one sweep in MLflow: found where they exist, created where they do not.

Every call may be repeated, and changes nothing the second time.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tasks.tracking.address import Tracking
from tasks.tracking.identity import (
    SweepIdentity,
    hash_key,
    is_same_param,
    to_epoch_metrics,
    to_tags,
)

if TYPE_CHECKING:
    from mlflow.entities import Metric, Param, Run, RunTag

RUN_TAG = "dml.run"
"""Identifies a run within the store: a hash over its sweep and its trial."""
SWEEP_TAG = "dml.sweep"
"""The hash of the sweep, equal for all of its runs."""
PARENT_TAG = "mlflow.parentRunId"
STATUS_TAG = "dml.status"
REASON_TAG = "dml.reason"
STEP_METRIC = "train.loss"
"""Every epoch has it, so its steps are the epochs that have arrived."""

MAX_ENTRIES = 1000
"""Most params, metrics and tags of a request in all."""
MAX_PARAMS = 100


@dataclass(frozen=True)
class RunEnd:
    """How a run ended."""

    mlflow_status: str
    """FINISHED, KILLED or FAILED."""
    status: str
    """How its trial ended."""
    reason: str
    """Why it did not finish."""


@dataclass
class KnownRun:
    """A run as it was found or created, with all that was written since, to save requests."""

    run_id: str
    status: str
    """MLflow's own: RUNNING, FINISHED, KILLED or FAILED."""
    params: dict[str, str]
    metrics: dict[str, float]
    tags: dict[str, str]
    epochs: dict[int, float | None] | None
    """The value of STEP_METRIC by epoch; None before it is read."""


@dataclass
class Unsent:
    """Values of a run that were noted and not sent yet."""

    params: "list[Param]" = field(default_factory=list)
    metrics: "list[list[Metric]]" = field(default_factory=list)
    """In groups that are sent whole or not at all, such as an epoch's."""
    tags: "list[RunTag]" = field(default_factory=list)

    def take(self) -> "tuple[list[Param], list[Metric], list[RunTag]]":
        """Removes and returns as much as a request holds; all empty where nothing is left."""
        params, self.params = self.params[:MAX_PARAMS], self.params[MAX_PARAMS:]
        tags, self.tags = self.tags[: MAX_ENTRIES // 2], self.tags[MAX_ENTRIES // 2 :]
        metrics: list[Metric] = []
        room = MAX_ENTRIES - len(params) - len(tags)
        while self.metrics and len(metrics) + len(self.metrics[0]) <= room:
            metrics += self.metrics.pop(0)
        return params, metrics, tags


@dataclass
class SweepRuns:
    """The parent run of a sweep and the runs nested in it.

    One process writes to them at a time. A request takes ten times as long as MLflow's work for it,
    so known values are not requested again, and values for one run are sent together by `flush`.
    """

    tracking: Tracking
    identity: SweepIdentity
    _keys: dict[str, str] = field(default_factory=dict)
    _known: dict[str, KnownRun] = field(default_factory=dict)
    _found: dict[str, KnownRun] = field(default_factory=dict)
    """By key: runs that were read and not opened yet."""
    _is_loaded: bool = False
    """Whether a run that is not in `_found` does not exist."""
    _unsent: dict[str, Unsent] = field(default_factory=dict)
    _experiment_id: str | None = None

    def __post_init__(self) -> None:
        self.client = self.tracking.client()

    def forget(self) -> None:
        """Forgets all runs, so that they are read from the store again."""
        self._keys.clear()
        self._known.clear()
        self._found.clear()
        self._is_loaded = False
        self._unsent.clear()
        self._experiment_id = None

    @property
    def experiment_id(self) -> str:
        """The study's experiment, created where it is missing."""
        if self._experiment_id is None:
            self._experiment_id = _open_experiment(self.tracking, self.identity.study)
        return self._experiment_id

    def open_parent(self, *, time_ms: int | None = None) -> str:
        """Returns the id of the sweep's parent run, created where it is missing."""
        name = f"{self.identity.study} sweep"
        return self._open("", name, self.identity.tags, time_ms=time_ms)

    def open_nested(
        self, key: str, *, name: str, tags: Mapping[str, Any], time_ms: int | None = None
    ) -> str:
        """Returns the id of the nested run with a key, created where it is missing."""
        parent = {PARENT_TAG: self.open_parent(), "trial_id": name}
        return self._open(key, name, {**tags, **parent}, time_ms=time_ms)

    def log_params(self, run_id: str, params: Mapping[str, str]) -> list[str]:
        """Notes params that a run lacks; returns the keys of those that have another value.

        MLflow refuses to change a param, and counts 7 instead of 7.0 as a change.
        """
        from mlflow.entities import Param

        there = self._get(run_id).params
        missing = [Param(key, value) for key, value in params.items() if key not in there]
        self._waiting(run_id).params += missing
        shared = params.keys() & there.keys()
        differing = [key for key in shared if not is_same_param(params[key], there[key])]
        there |= {param.key: param.value for param in missing}
        return sorted(differing)

    def log_epochs(
        self, run_id: str, epochs: Sequence[Mapping[str, Any]], *, ended_ms: int
    ) -> None:
        """Notes the epochs that a run lacks; an epoch is sent whole or not at all.

        An epoch that was trained again with another result, as a GPU may give, is noted as well.

        Args:
            run_id: which run.
            epochs: lines of epochs.jsonl.
            ended_ms: when the last one ended; the others' times follow from their durations.
        """
        from mlflow.entities import Metric

        known, groups = dict(self._known_epochs(run_id)), self._waiting(run_id).metrics
        for report, time_ms in zip(epochs, _list_times(epochs, ended_ms), strict=True):
            metrics, step = to_epoch_metrics(report), int(report["epoch"])
            value = metrics.get(STEP_METRIC)
            if step in known and _is_same_number(known[step], value):
                continue
            known[step] = value
            groups.append([Metric(name, v, time_ms, step) for name, v in metrics.items()])
        self._get(run_id).epochs = known

    def set_tags(self, run_id: str, tags: Mapping[str, Any]) -> None:
        """Notes the tags that a run lacks or that have another value."""
        self._log(run_id, {}, tags, time_ms=0)

    def flush(self, run_id: str) -> None:
        """Sends what was noted for a run, in as few requests as MLflow's limits allow."""
        unsent = self._unsent.pop(run_id, Unsent())
        while any(batch := unsent.take()):
            params, metrics, tags = batch
            self.client.log_batch(run_id, metrics=metrics, params=params, tags=tags)

    def get_status(self, run_id: str) -> str:
        """Returns the status of a run: running, interrupted, or how its trial ended."""
        return self._get(run_id).tags.get(STATUS_TAG, "running")

    def set_running(self, run_id: str) -> None:
        """Marks a run as running, and sends what was noted for it."""
        known = self._get(run_id)
        if known.status != "RUNNING":
            self.client.update_run(run_id, status="RUNNING")
            known.status = "RUNNING"
        # A run that was just created has no reason to clear.
        reason = {REASON_TAG: ""} if known.tags.get(REASON_TAG) else {}
        self.set_tags(run_id, {STATUS_TAG: "running", **reason})
        self.flush(run_id)

    def has(self, run_id: str, end: RunEnd | None, metrics: Mapping[str, float]) -> bool:
        """Returns whether a run has this end, and these values as its latest."""
        known = self._get(run_id)
        if end is None or known.status != end.mlflow_status:
            return False
        is_same = known.tags.get(STATUS_TAG) == end.status
        return is_same and all(
            _is_same_number(known.metrics.get(name), value) for name, value in metrics.items()
        )

    def end(
        self,
        run_id: str,
        end: RunEnd,
        *,
        time_ms: int,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Sends what was noted for a run and marks it as ended.

        A second call with the same end keeps the first time.

        Args:
            run_id: which run.
            end: how it ended.
            time_ms: when it ended.
            metrics: metrics with a single value.
        """
        known = self._get(run_id)
        is_same = known.status == end.mlflow_status and known.tags.get(STATUS_TAG) == end.status
        tags = {STATUS_TAG: end.status, REASON_TAG: end.reason}
        self._log(run_id, metrics or {}, tags, time_ms=time_ms)
        self.flush(run_id)
        if not is_same:
            self.client.set_terminated(run_id, end.mlflow_status, end_time=time_ms)
            known.status = end.mlflow_status

    def _log(
        self, run_id: str, metrics: Mapping[str, float], tags: Mapping[str, Any], *, time_ms: int
    ) -> None:
        """Notes the metrics and tags that are new or changed."""
        from mlflow.entities import Metric, RunTag

        known = self._get(run_id)
        numbers = {k: v for k, v in metrics.items() if not _is_same_number(known.metrics.get(k), v)}
        texts = {k: v for k, v in to_tags(tags).items() if known.tags.get(k) != v}
        waiting = self._waiting(run_id)
        waiting.metrics += [[Metric(name, value, time_ms, 0)] for name, value in numbers.items()]
        waiting.tags += [RunTag(key, value) for key, value in texts.items()]
        known.metrics |= numbers
        known.tags |= texts

    def load(self) -> None:
        """Reads all runs of the sweep at once, instead of each one when it is opened."""
        parent = self.open_parent()
        found = self._list(SWEEP_TAG, self.identity.key)
        if SWEEP_TAG not in self._get(parent).tags:
            # A record that was begun before runs had this tag.
            found += self._list(PARENT_TAG, parent)
        for run in found:
            self._found.setdefault(run.data.tags.get(RUN_TAG, ""), _know_run(run))
        self._is_loaded = True

    def _list(self, tag: str, value: str) -> "list[Run]":
        found: list[Run] = []
        token = None
        while True:
            page = self.client.search_runs(
                [self.experiment_id],
                filter_string=f"tags.`{tag}` = '{value}'",
                max_results=1000,
                page_token=token,
            )
            found += page
            token = page.token
            if not token:
                return found

    def _waiting(self, run_id: str) -> Unsent:
        return self._unsent.setdefault(run_id, Unsent())

    def _open(self, key: str, name: str, tags: Mapping[str, Any], *, time_ms: int | None) -> str:
        if key not in self._keys:
            full = hash_key(self.identity.key, key)
            known = self._found.pop(full, None)
            if known is None and not self._is_loaded:
                # A request may have arrived although its response was lost.
                known = self._search(full)
            known = known or self._create(full, name, tags, time_ms)
            self._known[known.run_id] = known
            self._keys[key] = known.run_id
            if PARENT_TAG in tags:
                # A deleted parent has been created again.
                self.set_tags(known.run_id, {PARENT_TAG: tags[PARENT_TAG]})
                self.flush(known.run_id)
        return self._keys[key]

    def _create(
        self, key: str, name: str, tags: Mapping[str, Any], time_ms: int | None
    ) -> KnownRun:
        sweep = {RUN_TAG: key, SWEEP_TAG: self.identity.key}
        all_tags = to_tags({**tags, **sweep, "mlflow.source.name": "dml"})
        run = self.client.create_run(
            self.experiment_id, start_time=time_ms, tags=all_tags, run_name=name
        )
        return KnownRun(run.info.run_id, "RUNNING", {}, {}, dict(all_tags), epochs={})

    def _search(self, key: str) -> KnownRun | None:
        found = self.client.search_runs(
            [self.experiment_id],
            filter_string=f"tags.`{RUN_TAG}` = '{key}'",
            max_results=1,
            order_by=["attributes.start_time ASC"],
        )
        return _know_run(found[0]) if found else None

    def _get(self, run_id: str) -> KnownRun:
        if run_id not in self._known:
            self._known[run_id] = _know_run(self.client.get_run(run_id))
        return self._known[run_id]

    def _known_epochs(self, run_id: str) -> dict[int, float | None]:
        known = self._get(run_id)
        if known.epochs is None:
            history = self.client.get_metric_history(run_id, STEP_METRIC)
            known.epochs = {metric.step: metric.value for metric in history}
        return known.epochs


def _know_run(run: "Run") -> KnownRun:
    return KnownRun(
        run_id=run.info.run_id,
        status=run.info.status,
        params=dict(run.data.params),
        metrics=dict(run.data.metrics),
        tags=dict(run.data.tags),
        epochs=None,
    )


def _is_same_number(one: float | None, other: float | None) -> bool:
    """Returns whether two values are equal; NaN equals NaN."""
    return one == other or (one is not None and other is not None and one != one and other != other)


def _list_times(epochs: Sequence[Mapping[str, Any]], ended_ms: int) -> list[int]:
    """Returns when each epoch ended: the journal holds durations, and the time of the last line."""
    times = []
    for report in reversed(epochs):
        times.append(ended_ms)
        seconds = float(report.get("train_seconds") or 0.0)
        ended_ms -= int(1000 * seconds) if math.isfinite(seconds) else 0
    return times[::-1]


def _open_experiment(tracking: Tracking, name: str) -> str:
    from mlflow.exceptions import MlflowException

    client = tracking.client()
    found = client.get_experiment_by_name(name)
    if found is None:
        root = tracking.artifact_root
        location = f"{root}/{hash_key(name)}" if root else None
        try:
            created: str = client.create_experiment(name, artifact_location=location)
            return created
        except MlflowException:
            # Another process may have created it.
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    if found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    experiment_id: str = found.experiment_id
    return experiment_id
