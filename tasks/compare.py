"""Gathers the scores that `dml compare` compares: of studies, or of any MLflow experiment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from dml_core.analysis.logged_runs import choose_unit, sort_runs
from dml_core.analysis.observations import Observations, answer_metric, load_observations
from dml_core.config.pipeline import MlflowConfig
from dml_core.measures.results import SCORES_FILE, StudyScores, read_scores
from dml_core.studies.metrics import is_higher_better, unit_of
from tasks.report_page.comparison import ComparedArms, describe_left_out
from tasks.report_page.style import mark_logged
from tasks.report_page.tables import Fact
from tasks.study import StudyContext, StudyRequest, load_context
from tasks.tracking.address import link_comparison
from tasks.tracking.experiments import RunSelection, find_runs, open_for_reading

_OWN_METRICS = ("test.", "validation.", "train.", "cost.")
"""Prefixes of the metrics that our own runs log, whose units are known."""


def parse_study(text: str) -> StudyRequest:
    """Returns the request for `name` or `name@profile`."""
    name, _, profile = text.partition("@")
    return StudyRequest(study=name, profile=profile or None)


@dataclass(frozen=True)
class _Evaluated:
    """A study with its results."""

    context: StudyContext
    scores: StudyScores
    observations: Observations

    @property
    def name(self) -> str:
        return self.context.request.folder_name


def gather_studies(
    requests: Sequence[StudyRequest], *, metric: str = "", lower_is_better: bool = False
) -> ComparedArms:
    """Returns the arms of several studies together.

    An arm whose name the first study has too is compared with that one, so that two profiles are
    compared arm by arm; other arms are compared with the best.

    Args:
        requests: two or more studies that were evaluated.
        metric: as in figures, such as `test.map_at_r`; empty takes that of the first study.
        lower_is_better: also where the metric's name does not say so.

    Raises:
        ValueError: for a study without results or without the metric.
    """
    studies = [_load(request) for request in requests]
    if len({each.name for each in studies}) < len(studies):
        raise ValueError("dml compare needs different studies. One is named twice.")
    chosen = metric or answer_metric(studies[0].context.study)
    scores: dict[str, Mapping[int, float]] = {}
    references = {}
    first = {f"{studies[0].name}: {arm.name}" for arm in studies[0].context.study.arms}
    for each in studies:
        found = each.observations.scalars(chosen)
        if not found:
            raise ValueError(
                f"study {each.name} has no {chosen}. {_list_metrics(each)} Choose another: --metric"
            )
        for arm in each.context.study.arms:
            scores[f"{each.name}: {arm.name}"] = found.get(arm.name, {})
            same = f"{studies[0].name}: {arm.name}"
            if each is not studies[0] and same in first:
                references[f"{each.name}: {arm.name}"] = same
    effects = [each.context.study.definition.smallest_effect for each in studies]
    return ComparedArms(
        kind="Studies",
        name=", ".join(each.name for each in studies),
        metric=chosen,
        scores=scores,
        references=references,
        higher_is_better=is_higher_better(chosen) and not lower_is_better,
        smallest_effect=min(effects) if unit_of(chosen).is_share else None,
        notes=(*_note_other_data(studies), *_note_same_trainings(scores)),
        facts=tuple(
            Fact(f"data of {each.name}", f"{each.scores.data_hash}/{each.scores.split_hash}")
            for each in studies
        ),
    )


def gather_experiment(
    selection: RunSelection, config: MlflowConfig, *, project: Path, lower_is_better: bool = False
) -> ComparedArms:
    """Returns the runs of an MLflow experiment by group and seed.

    Raises:
        ValueError: where the store, the experiment, or all runs of it lack what is named.
    """
    tracking = open_for_reading(config, project=project)
    found = find_runs(tracking, selection)
    runs = sort_runs(found.runs)
    if not runs.scores:
        listed = " ".join(describe_left_out(runs.left_out, 0))
        raise ValueError(f"experiment {found.experiment!r} has nothing to compare: {listed}")
    is_own = selection.metric.startswith(_OWN_METRICS)
    metric = selection.metric
    if not is_own:
        metric = mark_logged(metric, choose_unit(runs.scores))
    groups = ", ".join(selection.group_by)
    notes = [*describe_left_out(runs.left_out, runs.num_runs)]
    if any(name != str(number) for number, name in runs.seeds.items()):
        listed = ", ".join(f"{number} is {name}" for number, name in runs.seeds.items())
        notes.append(f"Seeds that are no whole numbers are numbered: {listed}.")
    facts = [
        Fact("store", found.store),
        Fact("groups", groups),
        Fact("seeds", selection.seed_by),
        Fact("filter", selection.where),
    ]
    newest = [next(reversed(by_seed.values())) for by_seed in runs.run_ids.values()]
    link = link_comparison(tracking, experiment_ids=[found.experiment_id], run_ids=newest)
    return ComparedArms(
        kind="MLflow experiment",
        name=f"{found.experiment} by {groups}",
        metric=metric,
        scores=runs.scores,
        higher_is_better=not lower_is_better and (not is_own or is_higher_better(metric)),
        notes=tuple(notes),
        facts=tuple(fact for fact in facts if fact.value),
        compare_url=link.url if link.server else "",
    )


def _load(request: StudyRequest) -> _Evaluated:
    context = load_context(request)
    if not (context.evaluate_folder / SCORES_FILE).is_file():
        profile = f" --profile {request.profile}" if request.profile else ""
        raise ValueError(
            f"study {request.folder_name} has no results to compare in {context.evaluate_folder}. "
            f"Run: dml run {request.study}{profile}"
        )
    scores = read_scores(context.evaluate_folder)
    if (context.sweep_folder / "winners").is_dir():
        observations = load_observations(context.sweep_folder, context.evaluate_folder)
    else:
        # The trainings were removed to free space; test scores are enough for most comparisons.
        observations = Observations(scores=scores.scores, untrained=scores.untrained)
    return _Evaluated(context, scores, observations)


def _list_metrics(study: _Evaluated) -> str:
    by_arm = study.scores.scores.values()
    names = {name for by_seed in by_arm for each in by_seed.values() for name in each}
    listed = ", ".join(f"test.{name}" for name in sorted(names) if not name.startswith("num_"))
    return f"It has: {listed}."


def _note_other_data(studies: Sequence[_Evaluated]) -> list[str]:
    """Returns a line where studies were evaluated on different data, which explains differences."""
    data = {(each.scores.data_hash, each.scores.split_hash) for each in studies}
    if len(data) == 1:
        return []
    return [
        "The studies were evaluated on different data or splits, so a difference may come from "
        "the data and not from the arms."
    ]


def _note_same_trainings(scores: Mapping[str, Mapping[int, float]]) -> list[str]:
    """Returns a line for arms that share their trainings, and so are no independent evidence."""
    same = [
        f"{left} and {right}"
        for left, right in combinations(scores, 2)
        if scores[left] and scores[left] == scores[right]
    ]
    if not same:
        return []
    listed = "; ".join(same[:5]) + ("; ..." if len(same) > 5 else "")
    return [f"The same score for every seed, as of shared trainings: {listed}."]
