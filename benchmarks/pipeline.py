"""The cost of Prefect, Ray, MLflow and DVC on top of training, and a run with nothing to do."""

import shutil
import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.in_process import Trained, train_in_processes
from benchmarks.projects import DML, Project, make_environment, open_served_project
from benchmarks.rows import Row, make_row
from benchmarks.settings import Settings
from benchmarks.small_sweeps import compare_small_sweep
from benchmarks.timing import rounds_within
from dml_core.trials.table import read_trials

GROUP = "pipeline"
CORES = 2
ROUNDS, MOST_SECONDS = 3, 200.0
MANY, FEW = 48, 4
"""Trials of two sweeps; their difference gives the cost of one trial."""
SWEEP_SECONDS, TRIAL_SECONDS = 600.0, 10.0
"""A sweep of ten minutes, with trials of the default study's length on one core."""
TINY = {
    "data.alias": "glyphs-tiny",
    "data.max_classes": 64,
    "data.images_per_class": 8,
    "sampler.batch_size": 30,
    "model.width": 8,
    "training.epochs": 2,
    "evaluation.clustering": False,
}
REST = ("prepare", "evaluate", "report")
"""Stages that do not belong to the sweep."""


@dataclass(frozen=True)
class Costs:
    """The time that the pipeline adds."""

    fixed: float
    """Seconds per sweep, independent of its number of trials."""
    trial: float
    """Seconds per trial, on its core."""

    def of_long_sweep(self) -> float:
        """Returns the seconds that a long sweep adds to its trials."""
        return self.fixed + SWEEP_SECONDS / TRIAL_SECONDS * self.trial


def run_pipeline(settings: Settings) -> list[Row]:
    """Returns the rows of the pipeline's cost; a short run compares the scores of a few trials."""
    if settings.short:
        difference = compare_small_sweep()
        return [_row("scores of trials", [1.0], difference=difference)]
    project = open_served_project()
    costs, difference = _measure(project)
    note = "solved for from a sweep of 48 and one of 4 tiny trials"
    fixed = statistics.median(cost.fixed for cost in costs)
    return [
        make_row(
            GROUP,
            "each trial",
            ours=[cost.trial for cost in costs],
            target=0.5,
            unit="s",
            against="the same trials in one process a core",
            note=note,
            difference=difference,
        ),
        make_row(
            GROUP,
            "sweep of 10 minutes",
            ours=[SWEEP_SECONDS + cost.of_long_sweep() for cost in costs],
            theirs=[SWEEP_SECONDS] * len(costs),
            target=1.1,
            unit="s",
            against="the same trials in one process a core",
            note=f"computed: {fixed:.1f} s at its start and end, and that of 60 trials a core",
        ),
        *_measure_commands(project),
    ]


def _row(name: str, ours: Sequence[float], *, difference: float | None) -> Row:
    return make_row(
        GROUP, name, ours=ours, target=1.0, against="the same trials in one process a core",
        difference=difference,
    )  # fmt: skip


def _measure(project: Project) -> tuple[list[Costs], float]:
    """Returns the costs of each round, and the largest difference of the trials' scores."""
    project.write_study("many", make_study(MANY // 3, learning_rate=0.002, seeds=3))
    project.write_study("few", make_study(FEW, learning_rate=0.003, seeds=1))
    costs, differences = [], []
    for _ in rounds_within(MOST_SECONDS, most=ROUNDS):
        spans = {study: _time_sweep(project, study) for study in ("few", "many")}
        trained = train_in_processes(project, "many", processes=CORES)
        costs.append(solve(spans["few"], spans["many"], mean_seconds(trained)))
        differences.append(_compare(project, "many", trained))
    return costs, max(differences)


def make_study(num_arms: int, *, learning_rate: float, seeds: int) -> dict[str, Any]:
    """Returns a study of tiny trials, all different."""
    rates = {f"rate{n:02d}": learning_rate * (1 + n / 100) for n in range(num_arms)}
    return {
        "question": "What does a trial cost beside its training?",
        "arms": {name: {"optimizer.learning_rate": rate} for name, rate in rates.items()},
        "fixed": TINY,
        "seeds": list(range(seeds)),
        "figure": {"kind": "bar", "x": "arm", "y": "test.recall_at_1"},
    }


def _time_sweep(project: Project, study: str) -> float:
    """Returns the seconds of `dml run` without those of the other stages."""
    # Otherwise the sweep would reuse the trials of an earlier round.
    for name in (".sweeps", ".trials"):
        shutil.rmtree(project.folder / "results" / name, ignore_errors=True)
    seconds = project.run("run", study, "--force", "--json")
    ended = [line for line in project.read_events(study) if line["event"] == "stage ended"]
    return seconds - sum(line["seconds"] for line in ended if line["stage"] in REST)


def mean_seconds(trained: Trained) -> float:
    """Returns the mean time of a trial, without the slow first one of each process."""
    warm = [found["seconds"] for found in list(trained.values())]
    return statistics.fmean(sorted(warm)[: len(warm) - CORES])


def solve(few_seconds: float, many_seconds: float, trial_seconds: float) -> Costs:
    """Returns the costs that explain two sweeps: fixed + trials per core x (training + cost)."""
    each = (many_seconds - few_seconds) / ((MANY - FEW) / CORES)
    return Costs(fixed=few_seconds - FEW / CORES * each, trial=each - trial_seconds)


def _compare(project: Project, study: str, trained: Trained) -> float:
    path = project.folder / "results" / study / "sweep" / "trials.parquet"
    records = {record.spec.trial_id: record.validation for record in read_trials(path)}
    assert records.keys() == trained.keys()
    return max(
        abs(value - records[trial][name])
        for trial, found in trained.items()
        for name, value in found["validation"].items()
    )


def _measure_commands(project: Project) -> list[Row]:
    helped = [_time_help(project.folder) for _ in range(5)]
    idle = [project.run("run", "many") for _ in range(2)]
    note = f"{MANY} winners, servers up"
    return [
        make_row(GROUP, "dml run, nothing stale", ours=idle, target=10.0, unit="s", note=note),
        make_row(GROUP, "dml --help", ours=helped, target=1.0, unit="s"),
    ]


def _time_help(folder: Path) -> float:
    started = time.perf_counter()
    subprocess.run(
        [str(DML), "--help"], cwd=folder, env=make_environment(folder), check=True,
        capture_output=True,
    )  # fmt: skip
    return time.perf_counter() - started
