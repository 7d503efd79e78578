"""Throughput of two cores against one, and of 64 nodes against one."""

import shutil
from collections.abc import Sequence
from typing import Any

from benchmarks.projects import Project, open_served_project
from benchmarks.rows import Row, make_row
from benchmarks.settings import Settings
from benchmarks.stub_sweeps import run_stubs
from benchmarks.timing import rounds_within

GROUP = "scaling"
NODES, STUB_SECONDS, ROUNDS_OF_TRIALS = 64, 10.0, 3
SHORT_NODES, SHORT_SECONDS, SHORT_ROUNDS = 2, 0.2, 2
REAL_TRIALS = 6
ROUNDS, MOST_SECONDS = 2, 230.0
"""Settings of the sweeps of real trials."""
REAL = {
    "model.width": 16,
    "training.epochs": 10,
    "evaluation.clustering": False,
}


def run_scaling(settings: Settings) -> list[Row]:
    """Returns the efficiency on two cores and on 64 simulated nodes."""
    if settings.short:
        times = run_stubs(nodes=SHORT_NODES, seconds=SHORT_SECONDS, rounds=SHORT_ROUNDS)
        lost = SHORT_NODES * SHORT_ROUNDS - len(times)
        return [_row("stubbed trials", [1.0], "no trial lost", difference=float(lost))]
    return [_measure_cores(open_served_project()), _measure_nodes()]


def _measure_cores(project: Project) -> Row:
    project.write_study("cores", _make_study())
    project.run("stage", "prepare")
    shares = []
    for _ in rounds_within(MOST_SECONDS, most=ROUNDS):
        one, two = (_rate_of_sweep(project, count) for count in (1, 2))
        shares.append(two / (2 * one))
    note = f"{REAL_TRIALS} real trials, after the first of each worker"
    return _row("1 to 2 cores", shares, "perfect", note=note)


def _make_study() -> dict[str, Any]:
    rates = {f"rate{n}": 0.002 * (1 + n / 10) for n in range(REAL_TRIALS)}
    return {
        "question": "Do two cores do twice as much?",
        "arms": {name: {"optimizer.learning_rate": rate} for name, rate in rates.items()},
        "fixed": REAL,
        "seeds": [0],
    }


def _rate_of_sweep(project: Project, concurrent: int) -> float:
    """Returns the trials per second of a sweep."""
    results = project.folder / "results"
    # Otherwise the sweep would reuse the trials of an earlier one.
    for name in (".sweeps", ".trials"):
        shutil.rmtree(results / name, ignore_errors=True)
    project.run("stage", "sweep", "cores", "--set", f"ray.max_concurrent={concurrent}")
    ended = (results / ".trials").glob("*/result.json")
    return count_rate([path.stat().st_mtime for path in ended], concurrent)


def count_rate(ends: Sequence[float], concurrent: int) -> float:
    """Returns the trials per second without the first of each worker, which includes its start."""
    ordered = sorted(ends)
    return (len(ordered) - concurrent) / (ordered[-1] - ordered[concurrent - 1])


def _measure_nodes() -> Row:
    times = run_stubs(nodes=NODES, seconds=STUB_SECONDS, rounds=ROUNDS_OF_TRIALS)
    note = (
        f"{len(times)} stubbed trials of {STUB_SECONDS:g} s on logical CPUs of this machine, from "
        "when all workers are up until the last trial begins"
    )
    return _row("1 to 64 nodes", [busy_share(times, nodes=NODES)], "perfect", note=note)


def busy_share(times: Sequence[tuple[float, float]], *, nodes: int) -> float:
    """Returns the share of the nodes' time spent in trials, while trials were waiting.

    Args:
        times: begin and end of each trial.
        nodes: concurrent trials.
    """
    ordered = sorted(times)
    # Every worker is up when the last of the first trials begins.
    start, end = ordered[nodes - 1][0], ordered[-1][0]
    busy = sum(max(0.0, min(ended, end) - max(began, start)) for began, ended in ordered)
    return busy / (nodes * (end - start))


def _row(
    name: str,
    ours: Sequence[float],
    against: str,
    *,
    note: str = "",
    difference: float | None = None,
) -> Row:
    return make_row(
        GROUP,
        name,
        ours=ours,
        target=0.9,
        direction="at least",
        unit="",
        against=against,
        note=note,
        difference=difference,
    )
