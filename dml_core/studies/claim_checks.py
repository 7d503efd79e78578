"""Finds claims that no result of a study could be held against."""

from collections.abc import Iterable, Mapping, Sequence

from dml_core.config import TrialConfig
from dml_core.config.loading import to_flat_dict
from dml_core.config.problems import suggest
from dml_core.studies.arms import expand_arms
from dml_core.studies.claims import Side, Trend
from dml_core.studies.metric_checks import explain_missing
from dml_core.studies.metric_names import REDUCERS, has_curve, split_reducer
from dml_core.studies.resolved import ResolvedStudy


def find_claim_problems(study: ResolvedStudy, configs: Mapping[str, TrialConfig]) -> list[str]:
    """Returns what is wrong with a study's claims, a sentence each.

    Arms that a profile leaves out may be named: the claim is then one that nobody can tell.

    Args:
        study: a study that may be unsound.
        configs: the configuration of each arm that has a valid one.
    """
    problems: list[str] = []
    for place, claim in enumerate(study.definition.claims):
        for name in ("left", "right", "trend"):
            part: Side | Trend | None = getattr(claim, name)
            if part is None:
                continue
            key = f"claims.{place}.{name}"
            problems += _find_arm_problems(key, study, part.arms)
            kept = {a: c for a, c in configs.items() if not part.arms or a in part.arms}
            problems += _find_metric_problems(key, study, part.metric, kept)
            if isinstance(part, Trend):
                problems += _find_trend_problems(f"{key}.key", study, part, kept)
    return problems


def is_number(value: object) -> bool:
    """Whether a value of a configuration can be put in order by size."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _find_arm_problems(key: str, study: ResolvedStudy, arms: Sequence[str]) -> Iterable[str]:
    names = [arm.name for arm in expand_arms(study.definition)]
    for arm in arms:
        if arm not in names:
            yield (
                f"{key}.arms must name arms. Got {arm!r}.{suggest(arm, names)} "
                f"The arms: {', '.join(names)}."
            )


def _find_metric_problems(
    key: str, study: ResolvedStudy, metric: str, configs: Mapping[str, TrialConfig]
) -> Iterable[str]:
    if not metric:
        return
    reducer, name = split_reducer(metric)
    if missing := explain_missing(name, configs, measures=study.definition.measures):
        yield f"{key}.metric {missing}"
    elif reducer and not has_curve(name):
        yield f"{key}.metric is one number already. Got {metric!r}. Leave out {reducer!r}."
    elif not reducer and ("*" in name or name.startswith(("gradient.", "table."))):
        listed = ", ".join(f"{each}.{name}" for each in REDUCERS)
        yield f"{key}.metric must be one number. Got {metric!r}. Take one of {listed}."


def _find_trend_problems(
    key: str, study: ResolvedStudy, trend: Trend, configs: Mapping[str, TrialConfig]
) -> Iterable[str]:
    values = {arm: to_flat_dict(config).get(trend.key) for arm, config in configs.items()}
    wrong = {arm: value for arm, value in values.items() if not is_number(value)}
    if wrong:
        varied = list(dict.fromkeys(each for arm in study.arms for each in arm.layer))
        arm, value = next(iter(wrong.items()))
        yield (
            f"{key} must be one with a number in every arm of the trend. Got {trend.key!r}, which "
            f"is {value!r} in arm {arm!r}.{suggest(trend.key, varied)} List the arms that have "
            "one under trend.arms."
        )
        return
    # What a profile or another problem leaves out may hold the other value.
    names = {arm.name for arm in expand_arms(study.definition)}
    is_whole = set(values) == (set(trend.arms) or names)
    if is_whole and len(set(values.values())) < 2:
        yield f"{key} must be one that the arms of the trend vary. Got {trend.key!r}."
