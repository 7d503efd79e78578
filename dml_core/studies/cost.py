"""Estimates how long a study takes: from measured seconds per image, or from published rates."""

from collections.abc import Mapping
from dataclasses import dataclass

from dml_core.config import ConfigError, TrialConfig
from dml_core.config.pipeline import RayConfig
from dml_core.config.training import DenseSamplerConfig
from dml_core.data.parallel import count_cores
from dml_core.data.sources.cars196 import CARS196_COUNTS
from dml_core.data.sources.published import CUB200_COUNTS, INSHOP_COUNTS, SOP_COUNTS
from dml_core.studies.resolved import ResolvedStudy
from dml_core.trials.halving import SuccessiveHalving


@dataclass(frozen=True)
class StudyCost:
    """Seconds of training without tries beyond the ranges; expected ones with asha."""

    seconds_per_trial: Mapping[str, float]
    """By arm."""
    num_search_trials: int
    num_repeat_trials: int
    total_seconds: float
    """Sum over all trained trials."""
    search_share: float = 1.0
    """Share of the search's training that asha is expected not to prune."""

    @property
    def num_trained(self) -> int:
        """Number of trials."""
        return self.num_search_trials + self.num_repeat_trials

    def wall_seconds(self, *, num_concurrent: int) -> float:
        """Returns the time with concurrent trials, if these do not slow each other down."""
        if num_concurrent < 1:
            raise ValueError(f"num_concurrent must be at least 1. Got {num_concurrent}.")
        return self.total_seconds / num_concurrent


def count_concurrent(ray: RayConfig) -> int:
    """Returns how many trials run at once on this machine."""
    return ray.max_concurrent or max(1, int(count_cores() / ray.cpus_per_trial))


def count_trials(study: ResolvedStudy) -> StudyCost:
    """Returns the trials of a study whose cost is unknown: it counts as nothing."""
    return sum_cost(study, {arm.name: 0.0 for arm in study.arms})


def sum_cost(study: ResolvedStudy, seconds_per_trial: Mapping[str, float]) -> StudyCost:
    """Returns the cost of a study from the seconds of a trial by arm.

    Repeats run in full. Of the search's trials it counts the share of epochs that
    `SuccessiveHalving.expected_epochs` lets run, under its assumption that a trial's score does not
    depend on when it reaches a rung.
    """
    num_tries = study.trials_per_arm * study.folds
    total = searched = pruned = 0.0
    for arm in study.arms:
        seconds = seconds_per_trial[arm.name]
        total += len(study.seeds_of(arm.name)) * seconds
        if study.single_values(arm.name) is None:
            searched += num_tries * seconds
            pruned += num_tries * seconds * (1 - _expect_share(study, arm.name))
    return StudyCost(
        seconds_per_trial=seconds_per_trial,
        num_search_trials=len(study.searched_arms) * num_tries,
        num_repeat_trials=study.num_repeats,
        total_seconds=total + searched - pruned,
        search_share=1 - pruned / searched if searched else 1.0,
    )


def _expect_share(study: ResolvedStudy, arm_name: str) -> float:
    """Returns the expected share of an arm's search epochs that are not pruned."""
    if study.scheduler.name != "asha":
        return 1.0
    halving = SuccessiveHalving(
        grace_epochs=study.scheduler.grace_epochs,
        reduction_factor=study.scheduler.reduction_factor,
    )
    training = study.arm_config(arm_name).training
    # Each fold is a separate group, so the share does not depend on the number of folds.
    epochs = halving.expected_epochs(
        study.trials_per_arm,
        num_epochs=training.epochs,
        validate_every=training.validate_every,
    )
    return epochs / (study.trials_per_arm * training.epochs)


def count_images_per_epoch(config: TrialConfig, num_train_images: int) -> int:
    """Returns the images of one epoch, as the sampler counts epochs."""
    sampler = config.sampler
    if isinstance(sampler, DenseSamplerConfig) and sampler.epoch == "anchors":
        num_batches = max(1, num_train_images // sampler.anchors_per_batch)
        return num_batches * sampler.batch_size
    # Every sampler draws at least one batch and drops an incomplete last one.
    return max(1, num_train_images // sampler.batch_size) * sampler.batch_size


REFERENCE = "one V100 16 GB in float32: 367 images/s through a ResNet-50 of 224 px"
"""NVIDIA DeepLearningExamples, README of PyTorch ResNet-50 v1.5: training on one GPU."""
_REFERENCE_RATE = 367.0
_REFERENCE_OPERATIONS = 4.089
"""Billions per image, as torchvision counts them."""
_REFERENCE_SIZE_PX = 224
_TIMM_BASE = "vit_base_patch16"
"""Names of timm with the layers of torchvision's vit_b_16, and so its number of operations."""
_VALIDATION_SHARE = 1 / 3
"""Assumption: the forward pass takes a third of a training step."""

OFFICIAL_IMAGES: Mapping[str, int] = {
    "cars196": CARS196_COUNTS.train_images,
    "cub200": CUB200_COUNTS.train_images,
    "inshop": INSHOP_COUNTS.train_images,
    "sop": SOP_COUNTS.train_images,
    # A folder may hold any number; this is that of the log-ratio paper.
    "folder": 12_366,
}
"""Images of the official training classes, validation included."""


class CostUnknown(ConfigError):
    """Nothing that is published gives the cost of a study; on its data it can be measured."""


@dataclass(frozen=True)
class GpuEstimate:
    """The estimated cost of a study on a GPU, with its assumptions."""

    cost: StudyCost
    assumptions: tuple[str, ...]
    """One sentence each."""

    @property
    def hours(self) -> float:
        """GPU hours of all trials, validation included."""
        return self.cost.total_seconds / 3600


def estimate_gpu_hours(
    study: ResolvedStudy, *, images_per_second: float | None = None
) -> GpuEstimate:
    """Returns the estimated cost of a study on a GPU, without its data.

    Args:
        study: the study, usually with its profile `paper`.
        images_per_second: measured training throughput; None scales a published rate by the
            network's operations and input size.

    Raises:
        CostUnknown: when the size of a dataset or the operations of a network are unknown.
    """
    problems, assumed, seconds = [], {}, {}
    for arm in study.arms:
        config = study.arm_config(arm.name)
        try:
            rate = images_per_second or _published_rate(config)
            seconds[arm.name] = _count_weighted_images(config) / rate
        except ValueError as error:
            problems.append(str(error))
            continue
        assumed[_describe(config, rate, is_given=images_per_second is not None)] = True
    if problems:
        raise CostUnknown(str(study.path), list(dict.fromkeys(problems)))
    return GpuEstimate(sum_cost(study, seconds), tuple(assumed))


def _count_weighted_images(config: TrialConfig) -> float:
    """Returns the images of a trial; validation images count by their relative cost."""
    name = config.data.name
    if name not in OFFICIAL_IMAGES:
        raise ValueError(
            f"data.name={name} has no official number of images, so the cost must be measured on "
            "the data."
        )
    share = 1 / config.data.folds if config.data.folds > 1 else config.data.validation_fraction
    num_validation = round(OFFICIAL_IMAGES[name] * share)
    num_train = OFFICIAL_IMAGES[name] - num_validation
    training = config.training
    validations = -(-training.epochs // training.validate_every)
    embedded = validations * num_validation * _VALIDATION_SHARE
    return training.epochs * count_images_per_epoch(config, num_train) + embedded


def _published_rate(config: TrialConfig) -> float:
    """Returns images per second, assuming that time scales with operations and pixels."""
    scale = (_REFERENCE_SIZE_PX / config.input_size_px) ** 2
    return _REFERENCE_RATE * _REFERENCE_OPERATIONS / _count_operations(config) * scale


def _count_operations(config: TrialConfig) -> float:
    """Returns billions of operations per image of 224 px."""
    import torchvision.models as library

    library_name, _, name = config.model.backbone.partition(":")
    if library_name == "timm" and name.startswith(_TIMM_BASE):
        library_name, name = "torchvision", "vit_b_16"
    if library_name != "torchvision":
        raise ValueError(
            f"model.backbone={config.model.backbone} has no published number of operations here, "
            "so the cost must be measured on the data, or --images-per-second given."
        )
    weights = library.get_model_weights(name)["DEFAULT"]
    return float(weights.meta["_ops"])


def _describe(config: TrialConfig, rate: float, *, is_given: bool) -> str:
    network = f"{config.model.backbone} at {config.input_size_px} px"
    images = f"{OFFICIAL_IMAGES[config.data.name]:,} images of {config.data.name}"
    source = "as given" if is_given else "scaled by operations and pixels from the reference"
    return f"{network}: {rate:,.0f} images/s, {source}; {images}, validation classes included"
