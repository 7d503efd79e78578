"""Measures how long one training image takes on this machine."""

import time

from dml_core.config import TrialConfig
from dml_core.data.prepared import DevelopmentData
from dml_core.training.determinism import limited_threads
from dml_core.training.epoch import EpochNumbers, take_step, training_batches
from dml_core.training.state import build_state

_WARMUP_STEPS = 2


def measure_seconds_per_image(
    config: TrialConfig, data: DevelopmentData, *, steps: int = 6
) -> float:
    """Returns the seconds of a training step divided by its images, after a short warm-up."""
    with limited_threads(config.training.cpu_threads):
        state = build_state(config, data)
        state.model.set_training(True, freeze_batch_norm=config.training.freeze_batch_norm)
        numbers, started, images = EpochNumbers(), 0.0, 0
        for step, (batch, inputs) in enumerate(training_batches(state)):
            if step == _WARMUP_STEPS:
                started, images = time.perf_counter(), numbers.num_images
            take_step(state, numbers, step=step, batch=batch, inputs=inputs)
            if step + 1 == _WARMUP_STEPS + steps:
                break
        measured = numbers.num_images - images
        return (time.perf_counter() - started) / measured if started and measured else 0.0
