"""dml plan: every trial that would run, and what it would cost, without running it."""

from pathlib import Path

from dml_core.config.loading import to_flat_dict
from dml_core.data.parallel_map import count_cores
from dml_core.data.prepared import open_development
from dml_core.studies.cost import estimate_cost
from dml_core.studies.resolved import ResolvedStudy
from dml_core.studies.trial_spec import TrialSpec
from dml_core.training.speed import measure_seconds_per_image
from flows.commands.terminal import say
from tasks.context import StudyContext, StudyRequest, load_context
from tasks.versioning import find_stale_stages


def run_plan(name: str, params: Path, assignments: list[str], *, profile: str | None) -> None:
    """Prints the trials of a study, the measured cost, and which stages are stale."""
    request = StudyRequest(
        study=name, profile=profile, params=str(params), overrides=tuple(assignments)
    )
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
    _print_cost(context)
    stale = find_stale_stages(request)
    say(f"stale stages: {', '.join(stale) or 'none, nothing would run'}")


def _list_trials(study: ResolvedStudy) -> list[TrialSpec]:
    if study.searcher == "tpe" and study.searched_arms:
        say(f"  search  {study.trials_per_arm} tries for each arm, chosen as results come in (tpe)")
        return []
    return study.search_specs()


def _print_cost(context: StudyContext) -> None:
    study = context.study
    # Arms with the same network and batch cost the same, so each kind is measured once.
    rates: dict[str, float] = {}
    measured: dict[tuple[object, ...], float] = {}
    images = 0
    for arm in study.arms:
        config = study.arm_config(arm.name)
        flat = to_flat_dict(config)
        kind = tuple(
            (key, str(value))
            for key, value in flat.items()
            if key.split(".")[0] in ("data", "model", "trunk", "sampler", "loss", "augmentation")
        )
        if kind not in measured:
            data = open_development(config.data)
            images = len(data.train)
            measured[kind] = measure_seconds_per_image(config, data)
        rates[arm.name] = measured[kind]
    cost = estimate_cost(study, rates, images)
    cores = max(1, int(count_cores() / context.project.pipeline.ray.cpus_per_trial))
    say(
        f"{cost.num_search_trials} search and {cost.num_repeat_trials} repeat trials, "
        f"{cost.total_seconds / 60:.1f} minutes of training on one core, about "
        f"{cost.wall_seconds(num_concurrent=cores) / 60:.1f} minutes with {cores} trials at once "
        "(measured on this machine, validation not counted)"
    )
