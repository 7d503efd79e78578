"""The runs of one sweep in MLflow: found again where they exist, created where they do not.

Everything here may be done twice and changes nothing the second time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tasks.tracking.address import Tracking
from tasks.tracking.identity import SweepIdentity, hash_key, is_same_param, to_tags

if TYPE_CHECKING:
    from mlflow.entities import Run

KEY_TAG = "dml.key"
PARENT_TAG = "mlflow.parentRunId"
STATUS_TAG = "dml.status"
REASON_TAG = "dml.reason"
STEP_METRIC = "train.loss"
"""Every epoch has it, so its steps are the epochs that have arrived."""

MAX_METRICS = 1000
MAX_PARAMS = 100


@dataclass(frozen=True)
class EpochNumbers:
    """The metrics of one epoch."""

    epoch: int
    time_ms: int
    metrics: Mapping[str, float]


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
    """A run as it was found or made, with what was written since: asking anew takes a request."""

    run_id: str
    status: str
    """MLflow's own: RUNNING, FINISHED, KILLED or FAILED."""
    params: dict[str, str]
    metrics: dict[str, float]
    tags: dict[str, str]
    epochs: dict[int, float | None] | None
    """The value of STEP_METRIC by epoch; None where it was not read yet."""


@dataclass
class SweepRuns:
    """The parent run of a sweep and the runs nested in it.

    One process writes to them at a time. A request costs ten times what MLflow's bookkeeping of it
    does, so what is known is not asked for, and what goes to one run goes there together.
    """

    tracking: Tracking
    identity: SweepIdentity
    _keys: dict[str, str] = field(default_factory=dict)
    _known: dict[str, KnownRun] = field(default_factory=dict)
    _found: dict[str, KnownRun] = field(default_factory=dict)
    """By key: runs that were read but not opened yet."""
    _experiment_id: str | None = None

    def __post_init__(self) -> None:
        self.client = self.tracking.client()

    def forget(self) -> None:
        """Forgets what is known of the store, to look there again."""
        self._keys.clear()
        self._known.clear()
        self._found.clear()
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
        """Adds params that a run lacks; returns the keys of those that it has otherwise.

        A param cannot be changed, and 7 where 7.0 stands would count as a change.
        """
        from mlflow.entities import Param

        there = self._get(run_id).params
        missing = [Param(key, value) for key, value in params.items() if key not in there]
        for start in range(0, len(missing), MAX_PARAMS):
            self.client.log_batch(run_id, params=missing[start : start + MAX_PARAMS])
        shared = params.keys() & there.keys()
        differing = [key for key in shared if not is_same_param(params[key], there[key])]
        there |= {param.key: param.value for param in missing}
        return sorted(differing)

    def log_epochs(self, run_id: str, epochs: Sequence[EpochNumbers]) -> None:
        """Adds the epochs that a run lacks; an epoch is there whole or not at all.

        One that was trained anew with another result, as a GPU may give, is added as well.
        """
        from mlflow.entities import Metric

        known = dict(self._known_epochs(run_id))
        batches: list[list[Metric]] = [[]]
        for numbers in epochs:
            value = numbers.metrics.get(STEP_METRIC)
            if numbers.epoch in known and _is_same_number(known[numbers.epoch], value):
                continue
            known[numbers.epoch] = value
            if len(batches[-1]) + len(numbers.metrics) > MAX_METRICS:
                batches.append([])
            time_ms, step = numbers.time_ms, numbers.epoch
            batches[-1] += [Metric(name, v, time_ms, step) for name, v in numbers.metrics.items()]
        for batch in filter(None, batches):
            self.client.log_batch(run_id, metrics=batch)
        self._get(run_id).epochs = known

    def log_results(self, run_id: str, metrics: Mapping[str, float], *, time_ms: int) -> None:
        """Adds metrics that have one value, where they are missing or have changed."""
        self._log(run_id, metrics, {}, time_ms=time_ms)

    def set_tags(self, run_id: str, tags: Mapping[str, Any]) -> None:
        """Sets the tags that a run lacks or has otherwise, in one request."""
        self._log(run_id, {}, tags, time_ms=0)

    def get_status(self, run_id: str) -> str:
        """Returns how a run stands: running, interrupted, or the way its trial ended."""
        return self._get(run_id).tags.get(STATUS_TAG, "running")

    def set_running(self, run_id: str) -> None:
        """Marks a run as going on."""
        known = self._get(run_id)
        if known.status != "RUNNING":
            self.client.update_run(run_id, status="RUNNING")
            known.status = "RUNNING"
        # A run that was just made has no reason to take back.
        reason = {REASON_TAG: ""} if known.tags.get(REASON_TAG) else {}
        self.set_tags(run_id, {STATUS_TAG: "running", **reason})

    def has(self, run_id: str, end: RunEnd | None, metrics: Mapping[str, float]) -> bool:
        """Returns whether a run has ended in a way, with these values as its newest."""
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
        """Marks a run as ended, once: the first end of the same kind gives its time.

        Args:
            run_id: which run.
            end: how it ended.
            time_ms: when that was.
            metrics: those that have one value, as in `log_results`.
        """
        known = self._get(run_id)
        is_same = known.status == end.mlflow_status and known.tags.get(STATUS_TAG) == end.status
        tags = {STATUS_TAG: end.status, REASON_TAG: end.reason}
        self._log(run_id, metrics or {}, tags, time_ms=time_ms)
        if not is_same:
            self.client.set_terminated(run_id, end.mlflow_status, end_time=time_ms)
            known.status = end.mlflow_status

    def _log(
        self, run_id: str, metrics: Mapping[str, float], tags: Mapping[str, Any], *, time_ms: int
    ) -> None:
        """Sends what is new of the metrics and tags, together."""
        from mlflow.entities import Metric, RunTag

        known = self._get(run_id)
        numbers = {k: v for k, v in metrics.items() if not _is_same_number(known.metrics.get(k), v)}
        texts = {k: v for k, v in to_tags(tags).items() if known.tags.get(k) != v}
        listed = [Metric(name, value, time_ms, 0) for name, value in numbers.items()]
        labels = [RunTag(key, value) for key, value in texts.items()]
        # A request takes a thousand entries of all kinds.
        room = MAX_METRICS - len(labels)
        for start in range(0, len(listed) or len(labels), room):
            batch = listed[start : start + room]
            self.client.log_batch(run_id, metrics=batch, tags=[] if start else labels)
        known.metrics |= numbers
        known.tags |= texts

    def load(self) -> None:
        """Reads all runs of the sweep at once, instead of one by one when they are opened."""
        parent = f"tags.`{PARENT_TAG}` = '{self.open_parent()}'"
        token = None
        while True:
            page = self.client.search_runs(
                [self.experiment_id], filter_string=parent, max_results=1000, page_token=token
            )
            for run in page:
                self._found.setdefault(run.data.tags.get(KEY_TAG, ""), know_run(run))
            token = page.token
            if not token:
                return

    def _open(self, key: str, name: str, tags: Mapping[str, Any], *, time_ms: int | None) -> str:
        if key not in self._keys:
            full = hash_key(self.identity.key, key)
            # A request may have arrived though its answer did not, so search before creating.
            known = self._found.pop(full, None) or self._search(full)
            known = known or self._create(full, name, tags, time_ms)
            self._known[known.run_id] = known
            self._keys[key] = known.run_id
            if PARENT_TAG in tags:
                # A parent that was deleted has been made anew.
                self.set_tags(known.run_id, {PARENT_TAG: tags[PARENT_TAG]})
        return self._keys[key]

    def _create(
        self, key: str, name: str, tags: Mapping[str, Any], time_ms: int | None
    ) -> KnownRun:
        all_tags = to_tags({**tags, KEY_TAG: key, "mlflow.source.name": "dml"})
        run = self.client.create_run(
            self.experiment_id, start_time=time_ms, tags=all_tags, run_name=name
        )
        return KnownRun(run.info.run_id, "RUNNING", {}, {}, dict(all_tags), epochs={})

    def _search(self, key: str) -> KnownRun | None:
        found = self.client.search_runs(
            [self.experiment_id],
            filter_string=f"tags.`{KEY_TAG}` = '{key}'",
            max_results=1,
            order_by=["attributes.start_time ASC"],
        )
        return know_run(found[0]) if found else None

    def _get(self, run_id: str) -> KnownRun:
        if run_id not in self._known:
            self._known[run_id] = know_run(self.client.get_run(run_id))
        return self._known[run_id]

    def _known_epochs(self, run_id: str) -> dict[int, float | None]:
        known = self._get(run_id)
        if known.epochs is None:
            history = self.client.get_metric_history(run_id, STEP_METRIC)
            known.epochs = {metric.step: metric.value for metric in history}
        return known.epochs


def know_run(run: "Run") -> KnownRun:
    """Returns what the store says of a run when it is found."""
    return KnownRun(
        run_id=run.info.run_id,
        status=run.info.status,
        params=dict(run.data.params),
        metrics=dict(run.data.metrics),
        tags=dict(run.data.tags),
        epochs=None,
    )


def _is_same_number(one: float | None, other: float | None) -> bool:
    """Whether two values are equal, as two values that are no numbers are here."""
    return one == other or (one is not None and other is not None and one != one and other != other)


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
            # Another process may have been faster.
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    if found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    experiment_id: str = found.experiment_id
    return experiment_id
