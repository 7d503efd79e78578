"""What a study would cost: measured where its data are here, computed for a GPU elsewhere."""

from dml_core.config.loading import to_flat_dict
from dml_core.data.parallel import count_cores
from dml_core.data.prepared import open_development
from dml_core.measures.step_cost import measure_seconds_per_image
from dml_core.studies.cost import (
    REFERENCE,
    GpuEstimate,
    StudyCost,
    estimate_cost,
    estimate_gpu_hours,
)
from dml_core.studies.resolved import ResolvedStudy
from tasks.study import StudyContext, is_prepared

_COSTLY = ("data", "model", "trunk", "sampler", "loss", "augmentation")
"""Sections that the time of a training step depends on."""
NOTHING_MEASURED = (
    f"Assumed, since the data are not prepared here: {REFERENCE} (NVIDIA DeepLearningExamples), "
    "time in proportion to operations and pixels, a validated image at a third of a trained one; "
    "the test, loading and waiting are not counted. --images-per-second N takes your own speed."
)


def estimate(
    context: StudyContext, *, images_per_second: float | None
) -> tuple[StudyCost, GpuEstimate | None]:
    """Returns a study's cost; the second part is there where it was not measured."""
    if images_per_second is None and all(is_prepared(data) for data in context.datasets):
        return _measure(context.study), None
    gpu = estimate_gpu_hours(context.study, images_per_second=images_per_second)
    return gpu.cost, gpu


def describe(context: StudyContext, cost: StudyCost, gpu: GpuEstimate | None) -> list[str]:
    """Returns a study's cost in sentences."""
    counted = (
        f"{cost.num_search_trials} search and {cost.num_repeat_trials} repeat trials, "
        f"{cost.num_trained} of them to train"
    )
    if gpu is not None:
        listed = [f"  {assumption}" for assumption in gpu.assumptions]
        return [f"{counted}: about {gpu.hours:,.1f} GPU hours", NOTHING_MEASURED, *listed]
    workers = max(context.study.arm_config(arm.name).trial.workers for arm in context.study.arms)
    cores = context.project.pipeline.ray.cpus_per_trial * workers
    at_once = max(1, int(count_cores() / cores))
    seconds = cost.wall_seconds(num_concurrent=at_once) / workers
    return [
        f"{counted}, {cost.total_seconds / 60:.1f} minutes of training on one core, about "
        f"{seconds / 60:.1f} minutes with {at_once} trials at "
        "once (measured on this machine, validation not counted)"
    ]


def _measure(study: ResolvedStudy) -> StudyCost:
    # Arms with the same network and batch cost the same, so each kind is measured once.
    rates: dict[str, float] = {}
    measured: dict[tuple[object, ...], float] = {}
    images = 0
    for arm in study.arms:
        config = study.arm_config(arm.name)
        kind = tuple(
            (key, str(value))
            for key, value in to_flat_dict(config).items()
            if key.split(".")[0] in _COSTLY
        )
        if kind not in measured:
            data = open_development(config.data)
            images = len(data.train)
            measured[kind] = measure_seconds_per_image(config, data)
        rates[arm.name] = measured[kind]
    return estimate_cost(study, rates, images)
