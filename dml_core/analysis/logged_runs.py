"""Runs that any code has logged, sorted into arms and seeds, so that the statistics apply to them.

A run belongs to the arm that its group names and to one seed, and has one value of the metric.
Runs that lack one of these are left out and counted.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dml_core.studies.metrics import Unit

_SIGNIFICANT_DIGITS = 4


@dataclass(frozen=True)
class LoggedRun:
    """One run as its code logged it; None where it lacks a value."""

    run_id: str
    group: str | None
    seed: str | None
    value: float | None
    started: int
    """Milliseconds since 1970; the newest of several runs with one seed counts."""
    is_finished: bool = True


@dataclass(frozen=True)
class SortedRuns:
    """The scores of all arms, and how many runs were left out for which reason."""

    scores: dict[str, dict[int, float]]
    """By arm and seed."""
    seeds: dict[int, str]
    """The seeds as the runs name them; texts that are no whole numbers are numbered."""
    left_out: dict[str, int] = field(default_factory=dict)
    """The number of runs by reason."""
    run_ids: dict[str, dict[int, str]] = field(default_factory=dict)
    """The run behind each score."""

    @property
    def num_runs(self) -> int:
        """How many runs count."""
        return sum(len(by_seed) for by_seed in self.scores.values())


def sort_runs(runs: Sequence[LoggedRun]) -> SortedRuns:
    """Returns the runs by arm and seed; of several runs with one seed the newest counts."""
    left_out: dict[str, int] = {}
    chosen: dict[tuple[str, str], tuple[LoggedRun, float]] = {}
    for run in sorted(runs, key=lambda each: each.started):
        reason = _find_reason(run)
        if reason or run.group is None or run.seed is None or run.value is None:
            left_out[reason] = left_out.get(reason, 0) + 1
            continue
        place = run.group, run.seed
        if place in chosen:
            reason = "replaced by a newer run of the same seed"
            left_out[reason] = left_out.get(reason, 0) + 1
        chosen[place] = run, run.value
    numbers = _number_seeds({seed for _, seed in chosen})
    scores: dict[str, dict[int, float]] = {}
    run_ids: dict[str, dict[int, str]] = {}
    for group in _order({group for group, _ in chosen}):
        found = {numbers[seed]: each for (name, seed), each in chosen.items() if name == group}
        scores[group] = {seed: found[seed][1] for seed in sorted(found)}
        run_ids[group] = {seed: found[seed][0].run_id for seed in sorted(found)}
    seeds = {number: seed for seed, number in numbers.items()}
    return SortedRuns(scores, seeds, left_out, run_ids)


def _find_reason(run: LoggedRun) -> str:
    if not run.is_finished:
        return "not finished"
    if run.group is None:
        return "without the group"
    if run.seed is None:
        return "without the seed"
    if run.value is None:
        return "without the metric"
    return "" if math.isfinite(run.value) else "with a metric that is no finite number"


def _number_seeds(texts: set[str]) -> dict[str, int]:
    """Returns each seed as a number: its own where all are whole numbers, else its place."""
    try:
        numbers = {text: int(text) for text in texts}
    except ValueError:
        numbers = {}
    # 1 and 01 would be the same seed.
    if len(set(numbers.values())) == len(texts):
        return numbers
    return {text: number for number, text in enumerate(sorted(texts))}


def _order(names: set[str]) -> list[str]:
    """Returns names in the order of their numbers where all are numbers, else alphabetically."""
    try:
        return sorted(names, key=float)
    except ValueError:
        return sorted(names)


def choose_unit(scores: Mapping[str, Mapping[int, float]]) -> Unit:
    """Returns the unit of a metric that only its values describe: a number of four digits."""
    largest = max((abs(v) for by_seed in scores.values() for v in by_seed.values()), default=0.0)
    whole = math.floor(math.log10(largest)) + 1 if largest > 0 else 0
    return Unit(1, "", "", min(max(_SIGNIFICANT_DIGITS - whole, 0), 12))
