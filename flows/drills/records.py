"""What a sweep has left: its table, its record in MLflow, its files."""

import sqlite3
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from flows.drills.project import STUDY

WAY_COLUMNS = ("train_seconds", "resumed")
"""Columns of trials.parquet that tell of the way, not of the result."""
_TIMES = ("train.seconds", "train.images_per_second", "train.peak_memory_mib", "train_seconds")
"""Metrics of the same kind: each epoch has them, with other values in every run."""
_OF_ONE_RUN = ("logs", "mlartifacts", ".dml", ".dvc", "printed-", "server", "drill", "mlflow.db")
"""Beginnings of names that differ from run to run, or are the drill's own."""


def read_table(folder: Path) -> list[dict[str, Any]]:
    """Returns the rows of a project's trials.parquet without what differs from run to run."""
    table = pq.read_table(folder / "results" / STUDY / "sweep" / "trials.parquet")
    rows: list[dict[str, Any]] = table.drop_columns(list(WAY_COLUMNS)).to_pylist()
    return rows


Run = tuple[str, str, list[tuple[str, int, Any]]]
"""The trial of a run in MLflow, empty for the sweep's own; its status; each metric's steps."""


def read_record(folder: Path) -> list[Run]:
    """Returns what MLflow's database has of each run.

    A run, or a metric of an epoch, that was recorded twice stands here twice.
    """
    database = sqlite3.connect(folder / "mlflow.db")
    try:
        runs = database.execute(
            "select runs.run_uuid, tags.value, runs.status from runs left join tags"
            " on tags.run_uuid = runs.run_uuid and tags.key = 'trial_id'"
        ).fetchall()
        metrics = database.execute("select run_uuid, key, step, value from metrics").fetchall()
    finally:
        database.close()
    values: dict[str, list[tuple[str, int, Any]]] = {}
    for run, key, step, value in metrics:
        kept = None if key in _TIMES else value
        values.setdefault(run, []).append((key, step, kept))
    return sorted(
        (trial or "", status, sorted(values.get(run, []), key=repr)) for run, trial, status in runs
    )


def list_files(folder: Path) -> set[str]:
    """Returns the files of a project, without logs and what has a new name in every run."""
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {
        str(path) for path in paths if not any(part.startswith(_OF_ONE_RUN) for part in path.parts)
    }
