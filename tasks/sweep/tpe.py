"""Trials with values that Optuna's TPE suggests, for each arm from its own results."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from statistics import fmean
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import TrialState

from dml_core.seeding import stream_seed
from dml_core.studies.dimensions import Choice, Dimension
from dml_core.studies.resolved import ResolvedArm, ResolvedStudy
from dml_core.trials.spec import TrialRecord, TrialSpec

# Score of diverged and collapsed models. Scores are from 0 to 1.
_WORST_SCORE = 0.0


class TpeTrials:
    """Yields tries over the arms in turn, as many for each arm as the study allows.

    Tries of an earlier process keep their values. Values depend on the study's seed, the arm, the
    number and the results so far, so the order in which trials end matters.
    """

    def __init__(self, study: ResolvedStudy, known: Iterable[TrialSpec] = ()) -> None:
        """Prepares the search.

        Args:
            study: what to search.
            known: search trials of an earlier process.
        """
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._study = study
        self._known = {
            (spec.arm, spec.number): spec.values for spec in known if spec.phase == "search"
        }
        self._searches = {arm.name: _ArmSearch(study, arm) for arm in study.searched_arms}
        self._order = self._hand_out()
        self._records: dict[tuple[str, int], list[TrialRecord]] = defaultdict(list)

    def next(self) -> TrialSpec | None:
        """Returns the next trial, or None when every arm has had its tries."""
        return next(self._order, None)

    def tell(self, record: TrialRecord) -> None:
        """Receives a trial's record; the search learns from a try once all its folds have ended."""
        key = record.spec.arm, record.spec.number
        self._records[key].append(record)
        if len(self._records[key]) == self._study.folds:
            self._searches[record.spec.arm].tell(record.spec.number, self._records.pop(key))

    def _hand_out(self) -> Iterator[TrialSpec]:
        for number in range(self._study.trials_per_arm):
            for name, search in self._searches.items():
                values = search.ask(number, self._known.get((name, number)))
                for fold in range(self._study.folds):
                    yield self._study.make_search_spec(name, number, values, fold=fold)


class _ArmSearch:
    """The search of one arm."""

    def __init__(self, study: ResolvedStudy, arm: ResolvedArm) -> None:
        self._arm = arm
        self._seed = study.search_seed
        # Optuna's default of ten random tries would leave nothing to learn from with eight tries.
        self._num_random = min(10, max(3, study.trials_per_arm // 4))
        self._distributions = {key: _distribution(d) for key, d in arm.space.items()}
        self._optuna = optuna.create_study(direction="maximize", sampler=self._sampler(0))
        self._asked: dict[int, optuna.Trial] = {}

    def ask(self, number: int, known: dict[str, Any] | None) -> dict[str, Any]:
        """Returns the values of a try; a try of an earlier process keeps its values."""
        if known is not None:
            self._optuna.enqueue_trial(
                {key: _to_optuna(self._arm.space[key], value) for key, value in known.items()}
            )
        # One sampler per try: a resumed search continues from its number, not from the start.
        self._optuna.sampler = self._sampler(number)
        trial = self._optuna.ask(self._distributions)
        self._asked[number] = trial
        values = {key: _from_optuna(self._arm.space[key], v) for key, v in trial.params.items()}
        return known if known is not None else values

    def tell(self, number: int, records: list[TrialRecord]) -> None:
        """Learns the mean over folds; from a pruned try what it reached, from a failure nothing."""
        trial = self._asked.pop(number)
        statuses = {record.status for record in records}
        scores = [_WORST_SCORE if r.score is None else r.score for r in records]
        if "failed" in statuses:
            self._optuna.tell(trial, state=TrialState.FAIL)
        elif statuses & {"diverged", "collapsed"}:
            self._optuna.tell(trial, _WORST_SCORE)
        elif "pruned" in statuses:
            trial.report(fmean(scores), step=min(record.epochs for record in records))
            self._optuna.tell(trial, state=TrialState.PRUNED)
        else:
            self._optuna.tell(trial, fmean(scores))

    def _sampler(self, number: int) -> optuna.samplers.TPESampler:
        seed = stream_seed(self._seed, f"tpe {self._arm.name}", step=number) % 2**32
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=self._num_random)


def _distribution(dimension: Dimension) -> BaseDistribution:
    if isinstance(dimension, Choice):
        # By position, since an option may be a list, which Optuna does not accept.
        return CategoricalDistribution(list(range(len(dimension.options))))
    if dimension.kind == "int_uniform":
        return IntDistribution(int(dimension.low), int(dimension.high))
    return FloatDistribution(dimension.low, dimension.high, log=dimension.kind == "log_uniform")


def _to_optuna(dimension: Dimension, value: Any) -> Any:
    return dimension.options.index(value) if isinstance(dimension, Choice) else value


def _from_optuna(dimension: Dimension, value: Any) -> Any:
    if isinstance(dimension, Choice):
        return dimension.options[value]
    if dimension.kind == "int_uniform":
        return int(value)
    # Six digits, as in random search, so that a value can be typed.
    return min(max(float(f"{value:.6g}"), dimension.low), dimension.high)
