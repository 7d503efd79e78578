"""Further tries of a search where an arm's best value lies at an end of its range.

A winner at an end is a half-tuned arm: the optimum may lie beyond. So the range of that arm is
extended, and all other arms are offered as many tries, since arms are compared with equal budgets.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dml_core.config import ConfigError
from dml_core.studies.definition import SEARCH_SEED
from dml_core.studies.dimensions import is_number
from dml_core.studies.resolved import ResolvedArm, ResolvedStudy
from dml_core.trials.spec import TrialRecord, TrialSpec
from dml_core.trials.winners import Winner, choose_winners

Values = Mapping[str, Any]


def extend_search(study: ResolvedStudy, records: Sequence[TrialRecord]) -> list[TrialSpec]:
    """Returns one more round of tries; none where the best values of all arms lie inside.

    An arm at an end tries one value beyond it, for each key at an end. Every other arm has as many
    tries, halfway between its best value and its neighbours, the better one first. A value that the
    configuration does not allow is not tried.

    Args:
        study: the study.
        records: of all search trials so far.
    """
    by_arm: dict[str, list[TrialRecord]] = defaultdict(list)
    for record in records:
        if record.spec.phase == "search":
            by_arm[record.spec.arm].append(record)
    winners = choose_winners(study, records)
    searches = [_ArmSearch(study, arm, winners[arm.name], by_arm[arm.name]) for arm in study.arms]
    beyond = [list(search.step_beyond()) for search in searches]
    num_tries = max(map(len, beyond), default=0)
    rounds = [
        (place, search, values)
        for search, outer in zip(searches, beyond, strict=True)
        for place, values in enumerate([*outer, *search.step_between()][:num_tries])
    ]
    # Alternates between the arms; the sort is stable.
    rounds.sort(key=lambda each: each[0])
    return [spec for place, search, values in rounds for spec in search.specs(place, values)]


class _ArmSearch:
    """The search of one arm so far."""

    def __init__(
        self,
        study: ResolvedStudy,
        arm: ResolvedArm,
        winner: Winner,
        records: Sequence[TrialRecord],
    ) -> None:
        self._study = study
        self._arm = arm
        self._winner = winner
        self._records = records

    def step_beyond(self) -> Iterator[Values]:
        """Yields the best values with one of the keys at an end moved beyond it."""
        for key, bound in self._winner.at_bound.items():
            tried = [record.spec.values[key] for record in self._records]
            value = self._arm.space[key].step_beyond(bound, tried)
            yield from self._put(key, value)

    def step_between(self) -> Iterator[Values]:
        """Yields the best values with one key moved halfway to a value that was tried beside it."""
        best = self._winner.values or {}
        for key, value in best.items():
            for other in self._neighbors(key, value):
                yield from self._put(key, self._arm.space[key].step_between(value, other))

    def specs(self, place: int, values: Values) -> list[TrialSpec]:
        """Returns the trials of a try, one for each fold."""
        number = 1 + max(record.spec.number for record in self._records) + place
        return [
            self._study.make_further_spec(self._arm.name, number, values, fold=fold)
            for fold in range(self._study.folds)
        ]

    def _neighbors(self, key: str, value: Any) -> list[Any]:
        """Returns the next lower and higher value that were tried, the better one first."""
        # Words and lists have no order.
        if not all(is_number(record.spec.values[key]) for record in self._records):
            return []
        scores: dict[float, float] = {}
        for record in self._records:
            score = -1.0 if record.score is None else record.score
            other = record.spec.values[key]
            scores[other] = max(score, scores.get(other, score))
        lower = [other for other in scores if other < value]
        higher = [other for other in scores if other > value]
        beside = [*([max(lower)] if lower else []), *([min(higher)] if higher else [])]
        return sorted(beside, key=lambda other: scores[other], reverse=True)

    def _put(self, key: str, value: Any) -> Iterator[Values]:
        """Yields the best values with another value of a key, if it is new and allowed."""
        if value is None:
            return
        values = {**(self._winner.values or {}), key: value}
        if any(record.spec.values == values for record in self._records):
            return
        try:
            self._study.resolve_config(self._arm.name, values, seed=SEARCH_SEED)
        except ConfigError:
            return
        yield values
