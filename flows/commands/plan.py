"""dml plan: the trials of studies and their cost, without running them.

The cost is measured where the data are prepared, and computed for a GPU elsewhere. Where neither is
possible, the command that prepares the data is named.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.terminal import DEFAULT_PARAMS, ParamsOption, ProfileOption, SetOption, say

if TYPE_CHECKING:
    from dml_core.studies.cost import GpuEstimate, StudyCost
    from dml_core.studies.resolved import ResolvedStudy
    from dml_core.trials.spec import TrialSpec
    from tasks.study import StudyContext, StudyRequest

_COSTLY = ("data", "model", "trunk", "sampler", "loss", "augmentation", "training", "evaluation")
"""Sections that decide the time of a trial."""
commands = typer.Typer()


@commands.command()
def plan(
    studies: Annotated[list[str] | None, typer.Argument(help="Names of studies.")] = None,
    params: ParamsOption = DEFAULT_PARAMS,
    set_: SetOption = None,
    profile: ProfileOption = None,
    all_: Annotated[bool, typer.Option("--all", help="Every study, one line each.")] = False,
    images_per_second: Annotated[
        float | None,
        typer.Option(help="Training speed of the GPU, instead of the assumed one.", min=0.01),
    ] = None,
) -> None:
    """List the trials of studies, their cost, and the stale stages; run nothing.

    If the data are prepared, the cost is measured on this machine. Otherwise it is computed in GPU
    hours from published numbers.
    """
    from flows.commands.studies import study_names
    from tasks.study import StudyRequest

    if not studies and not all_:
        raise ValueError("dml plan needs the names of studies, or --all for every one.")
    requests = [
        StudyRequest(study=name, profile=profile, params=str(params), overrides=tuple(set_ or ()))
        for name in (study_names() if all_ else studies or [])
    ]
    if all_:
        _print_table(requests, images_per_second)
        return
    for request in requests:
        _print_plan(request, images_per_second)


def _print_plan(request: "StudyRequest", images_per_second: float | None) -> None:
    from tasks.step_progress import shown_step
    from tasks.study import load_context
    from tasks.sweep.node_data import count_shared_trials
    from tasks.versioning.stages import find_stale_stages

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
    with shown_step(f"measuring the cost of {study.name}"):
        estimate = _estimate(context, images_per_second=images_per_second)
    for line in [*_describe_cost(context, estimate), *_describe_cluster(context)]:
        say(line)
    if num_shared := count_shared_trials(context):
        say(f"{num_shared} trials need no training: other studies have trained the same keys")
    stale = find_stale_stages(request)
    say(f"stale stages: {', '.join(stale) or 'none, nothing would run'}")


def _list_trials(study: "ResolvedStudy") -> "list[TrialSpec]":
    if study.searcher == "tpe" and study.searched_arms:
        say(f"  search  {study.trials_per_arm} tries for each arm, chosen as results come in (tpe)")
        return []
    return study.search_specs()


def _print_table(requests: "Iterable[StudyRequest]", images_per_second: float | None) -> None:
    from tasks.study import load_context

    say(f"{'study':20s} {'arms':>5s} {'trials':>7s} {'cost':>16s}")
    totals: dict[str, float] = {}
    trials = num_unknown = 0
    for request in requests:
        if not _has_profile(request):
            say(f"{request.study:20s} has no profile {request.profile!r}")
            continue
        context = load_context(request)
        estimate = _estimate(context, images_per_second=images_per_second)
        cost, gpu = estimate.cost, estimate.gpu
        if estimate.why_unknown:
            shown = f"unknown until: {_prepare_command(request)}"
            num_unknown += 1
        else:
            amount, unit = (gpu.hours, "GPU hours") if gpu else (cost.total_seconds / 60, "minutes")
            totals[unit] = totals.get(unit, 0.0) + amount
            shown = f"{amount:,.1f} {unit}"
        trials += cost.num_trained
        say(f"{request.study:20s} {len(context.study.arms):5d} {cost.num_trained:7d} {shown:>16s}")
    listed = " and ".join(f"{amount:,.1f} {unit}" for unit, amount in totals.items()) or "no cost"
    missing = f", without the cost of {num_unknown} studies" if num_unknown else ""
    say(f"{trials} trials, {listed}{missing}; a trial of two studies counts twice")
    if "minutes" in totals:
        say("minutes are of training on one core of this machine")
    if "GPU hours" in totals:
        say(_describe_assumptions())


def _has_profile(request: "StudyRequest") -> bool:
    from dml_core.config.yaml_files import read_yaml_mapping
    from dml_core.studies.loading import is_file_itself
    from tasks.study import STUDIES_FOLDER

    if is_file_itself(request.profile):
        return True
    profiles = read_yaml_mapping(STUDIES_FOLDER / f"{request.study}.yaml").get("profiles")
    return request.profile in (profiles or {})


@dataclass(frozen=True)
class _Estimate:
    """The trials of a study, and what they cost."""

    cost: "StudyCost"
    gpu: "GpuEstimate | None" = None
    """The cost on a GPU, if it was not measured here."""
    why_unknown: tuple[str, ...] = ()
    """Why there is no cost, a sentence each."""


def _estimate(context: "StudyContext", *, images_per_second: float | None) -> _Estimate:
    """Returns a study's cost; with an estimate for a GPU if it was not measured."""
    from dml_core.studies.cost import CostUnknown, count_trials, estimate_gpu_hours
    from tasks.study import is_prepared

    if images_per_second is None and all(is_prepared(data) for data in context.datasets):
        return _Estimate(_measure(context.study))
    try:
        gpu = estimate_gpu_hours(context.study, images_per_second=images_per_second)
    except CostUnknown as unknown:
        return _Estimate(count_trials(context.study), why_unknown=tuple(unknown.problems))
    return _Estimate(gpu.cost, gpu)


def _prepare_command(request: "StudyRequest") -> str:
    from tasks.report_page.tables import make_command

    return make_command(request, "prepare")


def _describe_cost(context: "StudyContext", estimate: _Estimate) -> list[str]:
    from dml_core.data.parallel import count_cores

    cost, gpu = estimate.cost, estimate.gpu
    counted = f"{cost.num_search_trials} search and {cost.num_repeat_trials} repeat trials"
    if cost.search_share < 1:
        counted += f" (asha is expected to run {cost.search_share:.0%} of the search)"
    if estimate.why_unknown:
        unknown = f"{counted}: cost unknown until: {_prepare_command(context.request)}"
        return [unknown, *(f"  {why}" for why in estimate.why_unknown)]
    if gpu is not None:
        listed = [f"  {assumption}" for assumption in gpu.assumptions]
        return [f"{counted}: about {gpu.hours:,.1f} GPU hours", _describe_assumptions(), *listed]
    workers = max(context.study.arm_config(arm.name).trial.workers for arm in context.study.arms)
    cores = context.project.pipeline.ray.cpus_per_trial * workers
    at_once = max(1, int(count_cores() / cores))
    seconds = cost.wall_seconds(num_concurrent=at_once) / workers
    return [
        f"{counted}, {cost.total_seconds / 60:.1f} minutes of training on one core, about "
        f"{seconds / 60:.1f} minutes with {at_once} trials at "
        "once (measured on this machine; tries beyond the ranges and the test not counted)"
    ]


def _describe_cluster(context: "StudyContext") -> list[str]:
    """Returns a line about the nodes of the cluster that the study would join; none for `local`."""
    from tasks.sweep.cluster import RayUnreachable, connect, count_concurrent
    from tasks.sweep.nodes import count_nodes

    config = context.project.pipeline.ray
    if config.address == "local":
        return []
    try:
        with connect(config):
            nodes, at_once = count_nodes(), count_concurrent(config)
    except RayUnreachable as error:
        return [f"cluster: {error}"]
    wanted = "nodes are requested for" if config.elastic else "room for"
    return [f"cluster {config.address}: {nodes.describe()}; {wanted} {at_once} trials at once"]


def _describe_assumptions() -> str:
    from dml_core.studies.cost import REFERENCE

    return (
        f"Assumed, since the data are not prepared here: {REFERENCE} (NVIDIA "
        "DeepLearningExamples), time in proportion to operations and pixels, a validated image at "
        "a third of a trained one; the test, loading and waiting are not counted. "
        "--images-per-second N sets your own speed."
    )


def _measure(study: "ResolvedStudy") -> "StudyCost":
    from dml_core.config.loading import to_flat_dict
    from dml_core.data.prepared import open_development
    from dml_core.measures.step_cost import measure_trial
    from dml_core.studies.cost import sum_cost

    # Arms with the same network, batch and epochs cost the same, so each kind is measured once.
    seconds: dict[str, float] = {}
    measured: dict[tuple[object, ...], float] = {}
    for arm in study.arms:
        config = study.arm_config(arm.name)
        kind = tuple(
            (key, str(value))
            for key, value in to_flat_dict(config).items()
            if key.split(".")[0] in _COSTLY
        )
        if kind not in measured:
            measured[kind] = measure_trial(config, open_development(config.data)).seconds(config)
        seconds[arm.name] = measured[kind]
    return sum_cost(study, seconds)
