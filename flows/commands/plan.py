"""dml plan: every trial that would run, and what it would cost, without running it."""

from collections.abc import Iterable
from pathlib import Path

from dml_core.config.yaml_files import read_yaml_mapping
from dml_core.studies.loading import is_file_itself
from dml_core.studies.resolved import ResolvedStudy
from dml_core.trials.spec import TrialSpec
from flows.commands.planned_cost import NOTHING_MEASURED, describe, estimate
from flows.commands.studies import study_names
from flows.commands.terminal import say
from tasks.study import STUDIES_FOLDER, StudyRequest, load_context
from tasks.versioning.stages import find_stale_stages


def run_plan(
    names: list[str],
    params: Path,
    assignments: list[str],
    *,
    profile: str | None,
    every: bool,
    images_per_second: float | None,
) -> None:
    """Prints the trials of studies, the cost, and which stages are stale; of all a line each."""
    if not names and not every:
        raise ValueError("dml plan needs the names of studies, or --all for every one.")
    requests = [
        StudyRequest(study=name, profile=profile, params=str(params), overrides=tuple(assignments))
        for name in (study_names() if every else names)
    ]
    if every:
        _print_table(requests, images_per_second)
        return
    for request in requests:
        _print_plan(request, images_per_second)


def _print_plan(request: StudyRequest, images_per_second: float | None) -> None:
    context = load_context(request)
    study = context.study
    say(f"{study.name}: {study.definition.question}")
    for spec in _list_trials(study):
        values = ", ".join(f"{key}={value}" for key, value in spec.values.items())
        say(f"  search  {spec.trial_id:32s} {values}")
    for arm in study.arms:
        changed = ", ".join(f"{key}={value}" for key, value in arm.layer.items())
        seeds = ", ".join(str(seed) for seed in study.seeds)
        say(f"  repeat  {arm.name:32s} seeds {seeds}  ({changed})")
    cost, gpu = estimate(context, images_per_second=images_per_second)
    for line in describe(context, cost, gpu):
        say(line)
    stale = find_stale_stages(request)
    say(f"stale stages: {', '.join(stale) or 'none, nothing would run'}")


def _list_trials(study: ResolvedStudy) -> list[TrialSpec]:
    if study.searcher == "tpe" and study.searched_arms:
        say(f"  search  {study.trials_per_arm} tries for each arm, chosen as results come in (tpe)")
        return []
    return study.search_specs()


def _print_table(requests: Iterable[StudyRequest], images_per_second: float | None) -> None:
    say(f"{'study':20s} {'arms':>5s} {'trials':>7s} {'cost':>16s}")
    totals: dict[str, float] = {}
    trials = 0
    for request in requests:
        if not _has_profile(request):
            say(f"{request.study:20s} has no profile {request.profile!r}")
            continue
        context = load_context(request)
        cost, gpu = estimate(context, images_per_second=images_per_second)
        amount, unit = (gpu.hours, "GPU hours") if gpu else (cost.total_seconds / 60, "minutes")
        totals[unit] = totals.get(unit, 0.0) + amount
        trials += cost.num_trained
        shown = f"{amount:,.1f} {unit}"
        say(f"{request.study:20s} {len(context.study.arms):5d} {cost.num_trained:7d} {shown:>16s}")
    listed = " and ".join(f"{amount:,.1f} {unit}" for unit, amount in totals.items())
    say(f"{trials} trials, {listed}; a trial that two studies ask for is counted twice")
    if "minutes" in totals:
        say("minutes are of training on one core of this machine, validation not counted")
    if "GPU hours" in totals:
        say(NOTHING_MEASURED)


def _has_profile(request: StudyRequest) -> bool:
    if is_file_itself(request.profile):
        return True
    profiles = read_yaml_mapping(STUDIES_FOLDER / f"{request.study}.yaml").get("profiles")
    return request.profile in (profiles or {})
