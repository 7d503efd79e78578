"""Chooses each arm's nuisance values by validation score, and counts the trials of its search."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal, Protocol

from dml_core.trials.spec import TrialRecord

Bound = Literal["low", "high"]
"""An end of a range."""


class SearchDimension(Protocol):
    """The range or choice of one nuisance value."""

    def find_bound(self, value: Any, tried: Iterable[Any] = ()) -> Bound | None:
        """Returns the end at which a value lies, of the range widened by tried values, if any."""


class SearchedArm(Protocol):
    """An arm with its search space."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def space(self) -> Mapping[str, SearchDimension]: ...  # noqa: D102


class SearchedStudy(Protocol):
    """The part of a `ResolvedStudy` that decides its winners."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def arms(self) -> Sequence[SearchedArm]: ...  # noqa: D102
    @property
    def folds(self) -> int: ...  # noqa: D102
    def get_arm(self, name: str, /) -> SearchedArm: ...  # noqa: D102
    def single_values(self, name: str, /) -> dict[str, Any] | None: ...  # noqa: D102


@dataclass(frozen=True)
class Winner:
    """The best trial of an arm's search, and the counts of all of them by outcome."""

    arm: str
    values: dict[str, Any] | None
    """The nuisance values; empty if there are none, None if no trial of a search finished."""
    score: float | None
    """Mean validation score over the folds; None without a search."""
    number: int | None
    """Its number in the search; None without a search."""
    reason: str = ""
    """Why there are no values; empty if there are."""
    spent: int = 0
    """Trials of the search, counted once per fold."""
    finished: int = 0
    pruned: int = 0
    diverged: int = 0
    collapsed: int = 0
    failed: int = 0
    at_bound: Mapping[str, Bound] = field(default_factory=dict)
    """Keys whose value lies at an end of all that was tried; the optimum may lie beyond."""


def choose_winners(study: SearchedStudy, records: Sequence[TrialRecord]) -> dict[str, Winner]:
    """Returns the winner of each arm by the mean validation score over the folds.

    Only values that finished in every fold are candidates; the lower number wins a tie. Records
    of the repeat phase are ignored.

    Raises:
        ValueError: for two records of one trial, or a record of an unknown arm.
    """
    searched = [record for record in records if record.spec.phase == "search"]
    _check_records(study, searched)
    by_arm: dict[str, list[TrialRecord]] = defaultdict(list)
    for record in searched:
        by_arm[record.spec.arm].append(record)
    return {arm.name: _choose(study, arm.name, by_arm[arm.name]) for arm in study.arms}


def _check_records(study: SearchedStudy, records: Sequence[TrialRecord]) -> None:
    counts = Counter(record.spec.trial_id for record in records)
    twice = [trial_id for trial_id, count in counts.items() if count > 1]
    if twice:
        raise ValueError(f"study {study.name!r} has two records of trial {twice[0]!r}.")
    for record in records:
        study.get_arm(record.spec.arm)


def _choose(study: SearchedStudy, arm_name: str, records: list[TrialRecord]) -> Winner:
    space = study.get_arm(arm_name).space
    if (values := study.single_values(arm_name)) is not None:
        return Winner(arm_name, values=values, score=None, number=None)
    counts = Counter(record.status for record in records)
    tallies: dict[str, Any] = {
        "spent": len(records),
        **{status: counts[status] for status in ("finished", "pruned", "diverged")},
        **{status: counts[status] for status in ("collapsed", "failed")},
    }
    scores = _score_tries(study, records)
    if not scores:
        reason = _say_why_none(study, records, counts)
        return Winner(arm_name, values=None, score=None, number=None, reason=reason, **tallies)
    best = max(scores, key=lambda number: (scores[number], -number))
    values = next(record.spec.values for record in records if record.spec.number == best)
    tried = {key: [record.spec.values[key] for record in records] for key in values}
    bounds = {key: space[key].find_bound(value, tried[key]) for key, value in values.items()}
    at_bound = {key: bound for key, bound in bounds.items() if bound is not None}
    return Winner(arm_name, dict(values), scores[best], best, at_bound=at_bound, **tallies)


def _score_tries(study: SearchedStudy, records: list[TrialRecord]) -> dict[int, float]:
    """Returns the mean score by number for values that finished in every fold."""
    by_number: dict[int, list[float]] = defaultdict(list)
    for record in records:
        score = record.score
        if record.status == "finished" and score is not None and math.isfinite(score):
            by_number[record.spec.number].append(score)
    return {
        number: fmean(scores) for number, scores in by_number.items() if len(scores) == study.folds
    }


def _say_why_none(study: SearchedStudy, records: list[TrialRecord], counts: Counter[Any]) -> str:
    if not records:
        return "no trial ran"
    listed = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    folds = f" in all {study.folds} folds" if study.folds > 1 else ""
    reasons = [record.reason for record in records if record.reason]
    first = f"; the first reason: {reasons[0]}" if reasons else ""
    return f"no try finished with a score{folds} ({listed}){first}"
