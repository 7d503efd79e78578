"""Whether the arms of a study were trained to their end: what the last third of the epochs gained.

An arm that was still rising when its training ended would have scored higher with more epochs, so
its place among the arms may be an artefact of their number.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean

from dml_core.analysis.observations import Observations, answer_metric
from dml_core.measures.results import Curve
from dml_core.studies.metrics import is_higher_better
from dml_core.studies.resolved import ResolvedStudy

LAST_SHARE = 1 / 3
"""The share of the epochs at the end that is looked at."""


def find_late_gains(study: ResolvedStudy, observations: Observations) -> dict[str, float]:
    """Returns by how much each arm improved on validation in the last third of its epochs.

    The improvement is that of the best score so far, averaged over the seeds, in the metric of the
    study's verdicts where it is validated, otherwise in the arm's selection metric. Arms with fewer
    than three validations are left out.
    """
    name = answer_metric(study).removeprefix("test.")
    gains = {}
    for arm in study.arms:
        metric = f"validation.{name}"
        curves = observations.curves(metric, x="epoch").get(arm.name)
        if not curves:
            metric = f"validation.{study.arm_config(arm.name).selection_metric}"
            curves = observations.curves(metric, x="epoch").get(arm.name, {})
        sign = 1.0 if is_higher_better(metric) else -1.0
        found = _measure(curves, study.arm_config(arm.name).training.epochs, sign)
        if found:
            gains[arm.name] = fmean(found)
    return gains


def _measure(curves: Mapping[int, Curve], epochs: int, sign: float) -> list[float]:
    return [
        late_gain([(x, sign * y) for x, y in curve], epochs=epochs)
        for curve in curves.values()
        if len(curve) >= 3
    ]


def late_gain(curve: Sequence[tuple[float, float]], *, epochs: int) -> float:
    """Returns how much the best score rose after the first two thirds of the epochs.

    Args:
        curve: epoch and score, in order; higher is better.
        epochs: of the whole training.
    """
    border = (1 - LAST_SHARE) * epochs
    early = [score for epoch, score in curve if epoch <= border + 1e-9]
    best = max(score for _, score in curve)
    return best - max(early) if early else 0.0
