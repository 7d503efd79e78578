"""The history of a study's results, and whether a new result is better or worse."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from dml_core.analysis.estimates import Interval, estimate_mean
from dml_core.analysis.verdicts import Scores as SeedScores
from dml_core.data.atomic_folder import folder_lock

FOLDER = ".history"


class HistoryError(ValueError):
    """A history file is malformed; the message names the file and the line."""


class Result(BaseModel):
    """The result of one run of a study."""

    model_config = ConfigDict(frozen=True)

    time: str
    """Time of the entry, in UTC as ISO 8601."""
    commit: str
    """Git commit of the code, marked if there are changes; empty outside of a repository."""
    data_hash: str
    digest: str
    """Digest of the study: all that decides its trials, except for data and code."""
    code: str = ""
    """Hash of the training code."""
    metric: str
    higher_is_better: bool
    champion: str
    """The best arm on validation, whose model is shipped."""
    scores: dict[str, dict[int, float]]
    """The metric by arm and seed."""
    accepted: bool = False
    """Whether later results are compared with it."""
    verdict: str = ""
    """Verdict at the time of the entry: first, gain, drop, no change."""

    @property
    def identity(self) -> str:
        """Hash of the numbers and the question; equal for equal results."""
        parts = [self.data_hash, self.digest, self.metric, self.champion, self.scores]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def is_comparable(self, other: "Result") -> bool:
        """Returns whether both have the same data and metric."""
        return (self.data_hash, self.metric) == (other.data_hash, other.metric)


def history_file(results_root: Path, name: str) -> Path:
    """Returns the history file of a study, by the name of its results folder."""
    return results_root / FOLDER / f"{name}.jsonl"


def read_history(file: Path) -> list[Result]:
    """Returns the results of a study, oldest first; none if there is no file."""
    if not file.exists():
        return []
    results = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            results.append(Result.model_validate_json(line))
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]["msg"]
            raise HistoryError(
                f"{file}, line {number} is not a valid result: {problem}. Remove the line, or "
                "restore the file."
            ) from error
    return results


def find_accepted(results: Sequence[Result], like: Result) -> Result | None:
    """Returns the newest accepted result that is comparable with another."""
    fitting = [result for result in results if result.accepted and result.is_comparable(like)]
    return fitting[-1] if fitting else None


def note_result(file: Path, result: Result) -> bool:
    """Appends a result unless the newest line equals it; returns whether it was appended.

    If the newest line equals it and the result is accepted now, the line is marked as accepted.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with folder_lock(file):
        before = read_history(file)
        is_new = not before or before[-1].identity != result.identity
        if is_new:
            _write(file, [*before, result])
        elif result.accepted and not before[-1].accepted:
            _write(file, [*before[:-1], before[-1].model_copy(update={"accepted": True})])
        return is_new


def _write(file: Path, results: Sequence[Result]) -> None:
    partial = file.with_suffix(".partial")
    lines: list[dict[str, Any]] = [result.model_dump(mode="json") for result in results]
    partial.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    os.replace(partial, file)


ALPHA = 0.05
Scores = Mapping[str, Mapping[int, float]]
"""By arm and seed."""
Verdict = Literal["gain", "drop", "no change"]


@dataclass(frozen=True)
class Difference:
    """A result minus an earlier one, seed by seed.

    Equal code and data give equal scores with the same seed, so the seeds are true pairs here.
    """

    reference: str
    """The arm that it is compared with."""
    num_pairs: int
    """Seeds that both have."""
    mean: float | None = None
    """None without pairs."""
    interval: Interval | None = None
    """95 %, of this comparison alone; None with fewer than two pairs."""
    p_value: float | None = None
    """Of this comparison alone."""
    adjusted_p_value: float | None = None
    """Among all arms of the study, by Holm."""


def compare(scores: SeedScores, other: SeedScores, *, reference: str) -> Difference:
    """Returns an arm minus another on the seeds that both have, not adjusted yet."""
    seeds = sorted(set(scores) & set(other))
    pairs = np.array([scores[seed] - other[seed] for seed in seeds], dtype=np.float64)
    if len(pairs) < 2:
        return Difference(reference, len(pairs), mean=float(pairs[0]) if len(pairs) else None)
    estimate = estimate_mean(pairs)
    return Difference(
        reference=reference,
        num_pairs=len(pairs),
        mean=float(estimate.mean),
        interval=(float(estimate.low), float(estimate.high)),
        p_value=float(estimate.p_value),
    )


def adjust_holm(p_values: Sequence[float]) -> list[float]:
    """Returns p-values adjusted for being several, by Holm's step-down method (1979).

    Rejecting those at most 0.05 gives a false rejection anywhere in the family in at most 5 % of
    families, however the tests depend on each other.
    """
    raw = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(raw, kind="stable")
    stepped = np.maximum.accumulate(raw[order] * np.arange(len(raw), 0, -1))
    adjusted = np.empty_like(raw)
    adjusted[order] = np.minimum(stepped, 1.0)
    return [float(value) for value in adjusted]


@dataclass(frozen=True)
class Change:
    """Differences of a result to the accepted one, paired by seed; above zero is better."""

    champion: Difference
    """Difference of the shipped arms of the two results, which may differ."""
    arms: dict[str, Difference]
    """Difference by arm that both results have, adjusted for multiple testing."""

    @property
    def worse_arms(self) -> list[str]:
        """Arms with a significant drop (paired t-test, Holm's correction over all arms)."""
        return [arm for arm, found in self.arms.items() if _is_below(found)]

    @property
    def verdict(self) -> Verdict:
        """drop: the champion's interval lies below zero, or an arm has a significant drop.

        gain: the champion's interval lies above zero, and no arm dropped.
        """
        low, high = self.champion.interval or (0.0, 0.0)
        if high < 0 or self.worse_arms:
            return "drop"
        return "gain" if low > 0 else "no change"


def measure_change(
    accepted: Scores,
    found: Scores,
    *,
    accepted_champion: str,
    champion: str,
    higher_is_better: bool,
) -> Change:
    """Returns the change of a result from the accepted one, on the seeds that both have.

    Args:
        accepted: scores of the accepted result.
        found: scores of the new one.
        accepted_champion: the shipped arm of the accepted result.
        champion: the shipped arm of the new result.
        higher_is_better: False for distances and costs.
    """
    sign = 1.0 if higher_is_better else -1.0

    def differ(new: str, old: str) -> Difference:
        return compare(
            _times(found.get(new, {}), sign), _times(accepted.get(old, {}), sign), reference=old
        )

    arms = {arm: differ(arm, arm) for arm in found if arm in accepted}
    return Change(differ(champion, accepted_champion), _adjust(arms))


def _times(scores: Mapping[int, float], sign: float) -> dict[int, float]:
    return {seed: sign * value for seed, value in scores.items()}


def _adjust(arms: dict[str, Difference]) -> dict[str, Difference]:
    tested = [arm for arm, found in arms.items() if found.p_value is not None]
    adjusted = adjust_holm([arms[arm].p_value or 0.0 for arm in tested])
    p_values = dict(zip(tested, adjusted, strict=True))
    return {arm: replace(d, adjusted_p_value=p_values.get(arm)) for arm, d in arms.items()}


def _is_below(found: Difference) -> bool:
    p_value, mean = found.adjusted_p_value, found.mean
    return p_value is not None and p_value <= ALPHA and mean is not None and mean < 0
