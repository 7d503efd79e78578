"""Reads the runs of any MLflow experiment, also of one that other code has logged.

Nothing is written: a database that is not ours keeps its permissions and its tables.
"""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dml_core.analysis.logged_runs import LoggedRun
from dml_core.config.pipeline import MlflowConfig
from dml_core.config.problems import suggest
from tasks.tracking.address import (
    Tracking,
    TrackingError,
    choose_tracking_uri,
    describe_store,
    first_line,
    hide_credentials,
    open_tracking,
    silence_mlflow,
)

if TYPE_CHECKING:
    from mlflow.entities import Experiment, Run

_PAGE = 1000


@dataclass(frozen=True)
class RunSelection:
    """Which runs of an experiment to compare, and by what."""

    experiment: str
    """Name or id."""
    group_by: tuple[str, ...]
    """Tags or params whose values name the arms."""
    seed_by: str
    """The tag or param that distinguishes the repetitions of an arm."""
    metric: str
    """Its last value counts."""
    where: str = ""
    """A filter in MLflow's own language, such as `tags.stage = 'final'`."""


@dataclass(frozen=True)
class FoundRuns:
    """The runs of an experiment."""

    experiment_id: str
    experiment: str
    store: str
    """The tracking store for messages, without credentials."""
    runs: list[LoggedRun]


def open_for_reading(config: MlflowConfig, *, project: Path) -> Tracking:
    """Returns a tracking store that exists; unlike `open_tracking`, it creates and closes nothing.

    Raises:
        TrackingError: when there is none, or it does not answer.
    """
    silence_mlflow()
    uri = choose_tracking_uri(config, project=project)
    if not uri.startswith("sqlite:///"):
        return open_tracking(config, project=project)
    path = Path(uri.removeprefix("sqlite:///"))
    if not path.is_file():
        raise TrackingError(
            f"there is no MLflow database {path}. Name the store of the runs: --tracking-uri "
            "sqlite:///FILE, or the address of a server."
        )
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            found = database.execute("select 1 from sqlite_master where name = 'experiments'")
            has_tables = found.fetchone() is not None
    except sqlite3.Error as error:
        raise TrackingError(f"{path} cannot be read as a database: {error}.") from error
    # MLflow would create its tables in any other database.
    if not has_tables:
        raise TrackingError(f"{path} is no database of MLflow: it has no experiments.")
    return Tracking(uri, artifact_root=None)


def find_runs(tracking: Tracking, selection: RunSelection) -> FoundRuns:
    """Returns every run of an experiment that the filter admits.

    Raises:
        TrackingError: for an unknown experiment or a filter that MLflow refuses.
        ValueError: where no run has the group, the seed or the metric.
    """
    from mlflow.exceptions import MlflowException

    try:
        experiment = _find_experiment(tracking, selection.experiment)
        runs = _list_runs(tracking, experiment.experiment_id, selection.where)
    except MlflowException as error:
        raise TrackingError(
            f"MLflow at {describe_store(tracking)} refuses: {first_line(error)}"
        ) from error
    if not runs:
        where = f" that satisfies {selection.where!r}" if selection.where else ""
        raise ValueError(f"experiment {experiment.name!r} has no run{where}. Nothing to compare.")
    _check_names(runs, selection, experiment.name)
    return FoundRuns(
        experiment.experiment_id,
        experiment.name,
        hide_credentials(tracking.uri),
        [_read_run(run, selection) for run in runs],
    )


def _find_experiment(tracking: Tracking, name: str) -> "Experiment":
    client = tracking.client()
    found = client.get_experiment_by_name(name)
    known = client.search_experiments(max_results=_PAGE)
    if found is None:
        found = next((each for each in known if each.experiment_id == name), None)
    if found is None:
        names = [each.name for each in known]
        raise TrackingError(
            f"MLflow at {describe_store(tracking)} has no experiment {name!r}."
            f"{suggest(name, names)} There are: {', '.join(names) or 'none'}."
        )
    return found


def _list_runs(tracking: Tracking, experiment_id: str, where: str) -> "list[Run]":
    client, token = tracking.client(), None
    runs: list[Run] = []
    while True:
        page = client.search_runs(
            [experiment_id], filter_string=where, max_results=_PAGE, page_token=token
        )
        runs += page
        token = page.token
        if not token:
            return runs


def _check_names(runs: "Sequence[Run]", selection: RunSelection, experiment: str) -> None:
    """Raises ValueError with every name that no run has, and the nearest one that exists."""
    labels = {key for run in runs for key in (*run.data.tags, *run.data.params)}
    own = sorted(key for key in labels if not key.startswith("mlflow."))
    metrics = sorted({key for run in runs for key in run.data.metrics})
    wanted = [*(("--group-by", key, own) for key in selection.group_by)]
    wanted += [("--seed-by", selection.seed_by, own), ("--metric", selection.metric, metrics)]
    problems = [
        f"{option} {name!r}: no run of experiment {experiment!r} has it.{suggest(name, known)} "
        f"There are: {', '.join(known) or 'none'}."
        for option, name, known in wanted
        if name not in (labels if option != "--metric" else metrics)
    ]
    if problems:
        raise ValueError("\n".join(problems))


def _read_run(run: "Run", selection: RunSelection) -> LoggedRun:
    labels = {**run.data.params, **run.data.tags}
    groups = [labels.get(key) for key in selection.group_by]
    value = run.data.metrics.get(selection.metric)
    return LoggedRun(
        run_id=run.info.run_id,
        group=_name_arm(selection.group_by, groups),
        seed=labels.get(selection.seed_by),
        value=None if value is None else float(value),
        started=int(run.info.start_time or 0),
        is_finished=run.info.status == "FINISHED",
    )


def _name_arm(keys: Sequence[str], values: Sequence[str | None]) -> str | None:
    """Returns the name of a run's arm: the value of one key, or all keys with their values."""
    if any(value is None for value in values):
        return None
    if len(keys) == 1:
        return str(values[0])
    return ", ".join(f"{key}={value}" for key, value in zip(keys, values, strict=True))
