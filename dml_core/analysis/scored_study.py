"""What the scores of a study say of its arms, and which model follows from them."""

from pathlib import Path

from dml_core.analysis.factors import read_coordinates
from dml_core.analysis.observations import Observations, answer_metric, load_observations
from dml_core.analysis.recommendation import Untrained
from dml_core.analysis.summary import StudySummary, summarize
from dml_core.analysis.verdicts import relative_effect
from dml_core.measures.results import WinnerFolder, choose_seed, list_winners
from dml_core.studies.metrics import is_higher_better, unit_of
from dml_core.studies.resolved import ResolvedStudy


def summarize_scores(
    study: ResolvedStudy, observations: Observations, *, command: str = ""
) -> StudySummary:
    """Returns what a study's metric says of its arms, arms without scores included.

    Args:
        study: the question.
        observations: its scores.
        command: adds seeds where a verdict is open; by default that of the study itself.
    """
    metric = answer_metric(study)
    by_arm = observations.scalars(metric)
    return summarize(
        {arm.name: by_arm.get(arm.name, {}) for arm in study.arms},
        references=study.references,
        coordinates=read_coordinates(study),
        untrained=_find_untrained(observations, metric),
        metric=metric.removeprefix("test."),
        unit=unit_of(metric),
        smallest_effect=find_smallest_effect(study, observations),
        higher_is_better=is_higher_better(metric),
        num_looks=study.num_looks,
        remedy=f"{command or f'dml run {study.name} --until-decided'} adds them",
    )


def find_shipped(
    study: ResolvedStudy, *, sweep_folder: Path, evaluate_folder: Path
) -> WinnerFolder:
    """Returns the model to ship: that of the recommended arm, with its best seed on validation.

    The report, the registered model, the export and the search all take this one.

    Args:
        study: the study.
        sweep_folder: with the winners.
        evaluate_folder: with their scores.
    """
    observations = load_observations(sweep_folder, evaluate_folder)
    arm = summarize_scores(study, observations).recommendation.best
    # Without any score no arm is recommended, and one is as good as another.
    seeds = observations.scores.get(arm) or observations.scores[arm := min(observations.scores)]
    folders = sweep_folder / "winners"
    kept = [winner for winner in list_winners(folders) if winner.arm == arm]
    if not kept:
        # Their checkpoints were removed to save space.
        return WinnerFolder(arm, min(seeds), folders / f"{arm}-seed{min(seeds)}")
    return choose_seed(kept)


def find_smallest_effect(study: ResolvedStudy, observations: Observations) -> float:
    """Returns the smallest difference worth having of a study's metric."""
    metric = answer_metric(study)
    if unit_of(metric).is_share:
        return study.definition.smallest_effect
    return relative_effect(observations.scalars(metric))


def _find_untrained(observations: Observations, metric: str) -> Untrained | None:
    """Returns the best score that needs no training; None where none was computed."""
    kind, _, name = metric.partition(".")
    found = [
        Untrained(each, scores[name])
        for each, scores in observations.untrained.items()
        if kind == "test" and name in scores
    ]
    if not found:
        return None
    choose = max if is_higher_better(metric) else min
    return choose(found, key=lambda each: each.score)
