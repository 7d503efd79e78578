"""Foresees how long a study takes, from the measured time for one image."""

from collections.abc import Mapping
from dataclasses import dataclass

from dml_core.config import TrialConfig
from dml_core.studies.resolved import ResolvedStudy


@dataclass(frozen=True)
class StudyCost:
    """Seconds of training; with asha an upper limit."""

    seconds_per_trial: Mapping[str, float]
    """By arm."""
    num_search_trials: int
    num_repeat_trials: int
    num_reused_trials: int
    """Repeats that the search has trained already: the winner's with the first seed."""
    total_seconds: float
    """Of all trials that are trained, one after the other."""

    @property
    def num_trained(self) -> int:
        """Trials that are trained."""
        return self.num_search_trials + self.num_repeat_trials - self.num_reused_trials

    def wall_seconds(self, *, num_concurrent: int) -> float:
        """Returns the time with so many trials at once, if they do not slow each other down."""
        if num_concurrent < 1:
            raise ValueError(f"num_concurrent must be at least 1. Got {num_concurrent}.")
        return self.total_seconds / num_concurrent


def estimate_cost(
    study: ResolvedStudy, seconds_per_image: float | Mapping[str, float], num_train_images: int
) -> StudyCost:
    """Returns what a study costs: trials x epochs x images x seconds for each.

    Args:
        study: the study.
        seconds_per_image: time of a training step divided by its images, on this machine; by arm
            where arms have networks of different cost.
        num_train_images: images of a trial's training set.
    """
    per_trial = {}
    for arm in study.arms:
        rate = seconds_per_image
        cost = rate if isinstance(rate, int | float) else rate[arm.name]
        images = count_images_per_epoch(study.arm_config(arm.name), num_train_images)
        epochs = study.arm_config(arm.name).training.epochs
        per_trial[arm.name] = epochs * images * cost
    return sum_cost(study, per_trial)


def sum_cost(study: ResolvedStudy, seconds_per_trial: Mapping[str, float]) -> StudyCost:
    """Returns what a study costs whose trials take so long, by arm."""
    num_tries = study.trials_per_arm * study.folds
    # A try over several folds trains on other classes than a repeat does.
    num_reused = 1 if study.folds == 1 else 0
    total = 0.0
    for arm in study.arms:
        num_searched = num_tries - num_reused if arm.space else 0
        total += (num_searched + len(study.seeds)) * seconds_per_trial[arm.name]
    return StudyCost(
        seconds_per_trial=seconds_per_trial,
        num_search_trials=len(study.searched_arms) * num_tries,
        num_repeat_trials=len(study.arms) * len(study.seeds),
        num_reused_trials=len(study.searched_arms) * num_reused,
        total_seconds=total,
    )


def count_images_per_epoch(config: TrialConfig, num_train_images: int) -> int:
    """Returns how many images one epoch goes through, as the sampler counts epochs."""
    sampler = config.sampler
    if sampler.name == "dense" and sampler.epoch == "anchors":
        num_batches = max(1, num_train_images // sampler.anchors_per_batch)
        return num_batches * sampler.batch_size
    # Every sampler draws at least one batch, and leaves out the rest that fills none.
    return max(1, num_train_images // sampler.batch_size) * sampler.batch_size
