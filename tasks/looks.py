"""Adds seeds to the arms of a study whose verdict is open, look by look, within a budget."""

import logging
import os
from statistics import fmean

from dml_core.analysis.looks import (
    count_seeds,
    find_open_arms,
    list_new_trials,
    plan_next_look,
)
from dml_core.studies.added_seeds import AddedSeeds, check_most_seeds, render_added
from dml_core.studies.cost import count_concurrent
from dml_core.trials.spec import TrialRecord
from dml_core.trials.table import read_trials
from tasks.budget import BudgetSpent, SeedBudget
from tasks.report import summarize_study
from tasks.study import StudyContext, StudyRequest, load_context

LOGGER = logging.getLogger(__name__)


def plan_looks(request: StudyRequest, budget: SeedBudget) -> None:
    """Writes the sizes of all looks before the first one, which is judged with them.

    Raises:
        ValueError: when no look can reach so many seeds.
    """
    study = load_context(request).study
    check_most_seeds(budget.most_seeds, len(study.seeds))
    planned = study.added.plan(max(count_seeds(study).values()), budget.most_seeds)
    if planned != study.added:
        _write(request, planned)


def add_seeds(request: StudyRequest, budget: SeedBudget) -> bool:
    """Writes the seeds of the next look; returns False where there is none, and logs why."""
    context = load_context(request)
    study, name = context.study, context.request.folder_name
    summary, judgements = summarize_study(context)
    planned = plan_next_look(study, summary, judgements, most_seeds=budget.most_seeds)
    if planned is None:
        is_open = bool(find_open_arms(summary, judgements))
        largest = max(count_seeds(study).values())
        why = f"an arm has {largest} seeds, the most" if is_open else "no more seeds are needed"
        LOGGER.info("%s: no further look: %s.", name, why)
        return False
    trials = list_new_trials(study, planned)
    seconds = _estimate_seconds(context, trials, budget)
    if seconds > budget.seconds_left:
        LOGGER.info(
            "%s: no further look: it would take about %.1f minutes, and %.1f of the budget of %.3g "
            "minutes are left. The same command adds the seeds later.",
            name, seconds / 60, max(0.0, budget.seconds_left) / 60, budget.minutes,
        )  # fmt: skip
        return False
    LOGGER.info(
        "%s: %d of %d arms are open and get seeds up to %d each: %d trials, about %.1f minutes.",
        name, sum(count > 0 for count in trials.values()), len(trials),
        len(study.seeds) + max(map(len, planned.seeds.values())),
        sum(trials.values()), seconds / 60,
    )  # fmt: skip
    _write(request, planned)
    return True


def take_back_seeds(request: StudyRequest, spent: BudgetSpent) -> bool:
    """Writes the seeds that the last finished sweep had, and logs why; the answer is of these.

    The trials of the seeds that are taken back keep their journals, and the next look that adds
    the same seeds resumes from there.

    Returns:
        False where there is nothing to take back, or no earlier sweep had every seed of the file.
    """
    context = load_context(request)
    study, name = context.study, context.request.folder_name
    path = context.sweep_folder / "trials.parquet"
    trained = _list_seeds(read_trials(path)) if path.exists() else {}
    if any(not set(study.seeds) <= trained.get(arm.name, set()) for arm in study.arms):
        return False
    kept = {
        arm: tuple(seed for seed in seeds if seed in trained[arm])
        for arm, seeds in study.added.seeds.items()
    }
    earlier = study.added.model_copy(update={"seeds": {arm: s for arm, s in kept.items() if s}})
    if earlier == study.added:
        return False
    _write(request, earlier)
    most = len(study.seeds) + max(map(len, kept.values()), default=0)
    LOGGER.info(
        "%s: the budget ended while seeds were added, so the answer is of %d seeds an arm at most. "
        "For the next look, %s",
        name, most, str(spent).removeprefix("not enough time for an answer: "),
    )  # fmt: skip
    return True


def _list_seeds(records: list[TrialRecord]) -> dict[str, set[int]]:
    """Returns the seeds of the repeats, by arm."""
    found: dict[str, set[int]] = {}
    for record in records:
        if record.spec.phase == "repeat":
            found.setdefault(record.spec.arm, set()).add(record.spec.config.seed)
    return found


def _write(request: StudyRequest, added: AddedSeeds) -> None:
    path = request.seeds_path
    partial = path.with_suffix(".partial")
    partial.write_text(render_added(added), encoding="utf-8")
    os.replace(partial, path)


def _estimate_seconds(context: StudyContext, trials: dict[str, int], budget: SeedBudget) -> float:
    """Returns about how long a look takes, from the trials and stages of the looks before."""
    spent: dict[str, list[float]] = {}
    for record in read_trials(context.sweep_folder / "trials.parquet"):
        spent.setdefault(record.spec.arm, []).append(record.train_seconds)
    training = sum(count * fmean(spent.get(arm) or [0.0]) for arm, count in trials.items())
    at_once = count_concurrent(context.project.pipeline.ray)
    after = budget.seconds_after_sweep(context, num_added=sum(trials.values()))
    return training / at_once + after
