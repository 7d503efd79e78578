"""The checks of a drill: each compares a sweep with an undisturbed one."""

import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.drills.project import NUM_TRIALS, STUDY, read_keys

Ended = Mapping[str, tuple[int, int]]
"""The attempts and the time of the result of each ended trial."""
Run = tuple[str, str, list[tuple[str, int, Any]]]
"""A run in MLflow: its trial (empty for the sweep's run), its status, each metric's steps."""
RUN_COLUMNS = ("train_seconds", "resumed", "key")
"""Columns of trials.parquet that differ from run to run. A trial's key contains the kind of device,
which a sweep knows only on its own cluster."""
_TIMES = ("train.seconds", "train.images_per_second", "train.peak_memory_mib", "train_seconds")
"""Metrics whose values differ from run to run."""
_RUN_FILES = ("logs", "mlartifacts", ".dml", ".dvc", "printed-", "server", "drill", "mlflow.db")
"""Prefixes of file names that differ from run to run, or belong to the drill."""


def check_results(folder: Path, undisturbed: Path) -> list[str]:
    """Returns the problems of a finished sweep's table, MLflow runs and files."""
    problems: list[str] = []
    for check in (_compare_tables, _compare_runs, _compare_files):
        problems += _try(check, folder, undisturbed)
    return problems


def _try(check: Callable[[Path, Path], list[str]], folder: Path, undisturbed: Path) -> list[str]:
    try:
        return check(folder, undisturbed)
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]


def _compare_tables(folder: Path, undisturbed: Path) -> list[str]:
    return compare_tables(read_table(folder), read_table(undisturbed))


def _compare_runs(folder: Path, undisturbed: Path) -> list[str]:
    return compare_runs(read_runs(folder), read_runs(undisturbed))


def _compare_files(folder: Path, undisturbed: Path) -> list[str]:
    return compare_files(list_files(folder), list_files(undisturbed))


def compare_tables(
    rows: Sequence[Mapping[str, Any]], wanted: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Returns where a table of trials differs from the undisturbed one."""
    problems = [] if len(rows) == NUM_TRIALS else [f"the table has {len(rows)} trials"]
    for row, other in zip(rows, wanted, strict=False):
        differing = sorted(key for key in other if row.get(key) != other[key])
        if differing:
            shown = ", ".join(f"{k}={row.get(k)!r} for {other[k]!r}" for k in differing[:3])
            problems.append(f"the table's trial {other.get('trial_id')} differs in {shown}")
    return problems


def compare_runs(runs: Sequence[Run], wanted: Sequence[Run]) -> list[str]:
    """Returns where the runs in MLflow differ from those of an undisturbed sweep."""
    problems = []
    for trial, times in Counter(trial for trial, _, _ in runs).items():
        if times > 1:
            problems.append(f"MLflow has {times} runs of {trial or 'the sweep'}")
    for trial, status, metrics in runs:
        if status == "RUNNING":
            problems.append(f"MLflow's run of {trial or 'the sweep'} is left RUNNING")
        if double := [key for key, times in Counter(m[:2] for m in metrics).items() if times > 1]:
            name, step = double[0]
            problems.append(f"MLflow has {name} of epoch {step} of {trial} more than once")
    if not problems and list(runs) != list(wanted):
        problems.append(f"MLflow's runs differ: {_first_difference(runs, wanted)}")
    return problems


def compare_files(found: set[str], wanted: set[str]) -> list[str]:
    """Returns the files that an undisturbed run does not leave, and those that are missing."""
    problems = [f"the file {name} is left" for name in sorted(found - wanted)]
    return problems + [f"the file {name} is missing" for name in sorted(wanted - found)]


def compare_ended(before: Ended, after: Ended) -> list[str]:
    """Returns the ended trials that are gone or ran again."""
    problems = [f"the finished trial {name} is lost" for name in before if name not in after]
    return problems + [
        f"the finished trial {name} ran again"
        for name, state in before.items()
        if name in after and after[name] != state
    ]


def count_starts(ended: Ended, *, at_most: int) -> list[str]:
    """Returns the trials that were started more often than the faults explain."""
    return [
        f"trial {name} was started {attempts} times"
        for name, (attempts, _) in ended.items()
        if attempts > at_most
    ]


def list_temporary(folder: Path) -> list[str]:
    """Returns the temporary files that are left, without PyTorch's shared cache."""
    names = sorted(path.name for path in folder.iterdir())
    return [
        f"the temporary file {name} is left"
        for name in names
        if not name.startswith("torchinductor_")
    ]


def _first_difference(runs: Sequence[Run], wanted: Sequence[Run]) -> str:
    for found, other in zip(runs, wanted, strict=False):
        if found[:2] != other[:2]:
            return f"{found[:2]} for {other[:2]}"
        for mine, theirs in zip(found[2], other[2], strict=False):
            if mine != theirs:
                return f"{found[0]} has {mine} for {theirs}"
        if len(found[2]) != len(other[2]):
            return f"{found[0]} has {len(found[2])} numbers for {len(other[2])}"
    return f"{len(runs)} runs for {len(wanted)}"


def read_table(folder: Path) -> list[dict[str, Any]]:
    """Returns the rows of a project's trials.parquet without the columns of one run."""
    table = pq.read_table(folder / "results" / STUDY / "sweep" / "trials.parquet")
    rows: list[dict[str, Any]] = table.drop_columns(list(RUN_COLUMNS)).to_pylist()
    return rows


def read_runs(folder: Path) -> list[Run]:
    """Returns the runs in MLflow's database.

    A run or a metric of an epoch that was logged twice appears twice.
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
    """Returns the files of a project, without logs and names that differ from run to run.

    Journals are named by their first trial instead of by their key.
    """
    trials: dict[str, str] = {}
    for trial, key in read_keys(folder).items():
        trials.setdefault(key, trial)
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {
        "/".join(trials.get(part, part) for part in path.parts)
        for path in paths
        if not any(part.startswith(_RUN_FILES) for part in path.parts)
    }
