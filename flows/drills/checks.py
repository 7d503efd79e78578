"""The promises of a sweep, each checked against one that nothing happened to."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.drills.project import NUM_TRIALS
from flows.drills.records import Run, list_files, read_record, read_table

Ended = Mapping[str, tuple[str, int]]


def check_results(folder: Path, undisturbed: Path) -> list[str]:
    """Returns what is wrong with a finished sweep's table, record and files."""
    problems: list[str] = []
    for check in (_compare_tables, _compare_records, _compare_files):
        problems += _try(check, folder, undisturbed)
    return problems


def _try(check: Callable[[Path, Path], list[str]], folder: Path, undisturbed: Path) -> list[str]:
    try:
        return check(folder, undisturbed)
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]


def _compare_tables(folder: Path, undisturbed: Path) -> list[str]:
    return compare_tables(read_table(folder), read_table(undisturbed))


def _compare_records(folder: Path, undisturbed: Path) -> list[str]:
    return compare_records(read_record(folder), read_record(undisturbed))


def _compare_files(folder: Path, undisturbed: Path) -> list[str]:
    return compare_files(list_files(folder), list_files(undisturbed))


def compare_tables(
    rows: Sequence[Mapping[str, Any]], wanted: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Returns where a table of trials is not the undisturbed one."""
    problems = [] if len(rows) == NUM_TRIALS else [f"the table has {len(rows)} trials"]
    for row, other in zip(rows, wanted, strict=False):
        differing = sorted(key for key in other if row.get(key) != other[key])
        if differing:
            shown = ", ".join(f"{k}={row.get(k)!r} for {other[k]!r}" for k in differing[:3])
            problems.append(f"the table's trial {other.get('trial_id')} differs in {shown}")
    return problems


def compare_records(runs: Sequence[Run], wanted: Sequence[Run]) -> list[str]:
    """Returns what MLflow has too much, too little or otherwise."""
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
        problems.append(f"MLflow's record differs: {_first_difference(runs, wanted)}")
    return problems


def compare_files(found: set[str], wanted: set[str]) -> list[str]:
    """Returns which files are left that a quiet run does not leave, and which are missing."""
    problems = [f"the file {name} is left" for name in sorted(found - wanted)]
    return problems + [f"the file {name} is missing" for name in sorted(wanted - found)]


def compare_ended(before: Ended, after: Ended) -> list[str]:
    """Returns which trials had ended and are gone, or ran again."""
    problems = [f"the finished trial {name} is lost" for name in before if name not in after]
    return problems + [
        f"the finished trial {name} ran again"
        for name, state in before.items()
        if name in after and after[name] != state
    ]


def count_starts(ended: Ended, *, at_most: int) -> list[str]:
    """Returns which trials were started more often than the faults explain."""
    return [
        f"trial {name} was started {len(starts)} times"
        for name, (starts, _) in ended.items()
        if len(starts) > at_most
    ]


def list_temporary(folder: Path) -> list[str]:
    """Returns the temporary files that are left; PyTorch's shared cache is no such."""
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
