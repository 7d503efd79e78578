"""Measures the time and the memory of a training step."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from statistics import median

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from dml_core.config import TrialConfig
from dml_core.data.prepared import DevelopmentData, open_development
from dml_core.measures.results import Measured, WinnerFolder
from dml_core.samplers import Batch
from dml_core.training.determinism import limited_threads
from dml_core.training.epoch import take_step, training_batches
from dml_core.training.state import TrialState, build_state

_ALLOCATION = "[memory]"


def measure_peak_bytes(work: Callable[[], object], *, device: torch.device) -> int:
    """Returns the most bytes of tensors that were held at one time beyond those before the work.

    On a CPU torch's own allocations are counted one by one. The resident size of the process
    would also hold what earlier work left in the allocator, so that one arm would hide another.
    """
    if device.type == "cuda":
        return _measure_on_gpu(work, device)
    # Otherwise the profiler's library writes to stderr that it looked for a GPU.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        work()
    results = recorded.profiler.kineto_results
    changes = [event for event in results.events() if event.name() == _ALLOCATION]
    held = highest = 0
    for change in sorted(changes, key=lambda event: event.start_ns()):
        held += change.nbytes()
        highest = max(highest, held)
    return highest


def _measure_on_gpu(work: Callable[[], object], device: torch.device) -> int:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


@dataclass(frozen=True)
class StepBudget:
    """How long is measured."""

    rounds: int = 5
    """Turns of each arm; a slow moment of the machine falls on one round of all arms."""
    steps: int = 5
    """Timed steps of a turn, of which the median counts."""
    warmup: int = 2
    """Steps before the first round, in which the optimiser makes its state."""


def measure_step_cost(
    winners: Sequence[WinnerFolder], budget: StepBudget | None = None
) -> Measured:
    """Returns `cost.step_seconds` and `cost.memory_mib` by arm and round.

    Each arm is measured as its winner of the first seed was trained.
    """
    configs: dict[str, TrialConfig] = {}
    for winner in winners:
        if winner.arm not in configs:
            configs[winner.arm] = winner.load().config
    return measure_configs(configs, budget or StepBudget())


def measure_configs(configs: Mapping[str, TrialConfig], budget: StepBudget) -> Measured:
    """Returns the cost of a step of each configuration, by its name and the round.

    A step is the whole of it: forward, loss, backward, optimiser; its inputs are made before the
    clock starts. The memory is the most that a step holds beyond weights, optimiser state and
    inputs; gradients count. One thread, on the configurations' training data.
    """
    measured = Measured()
    with limited_threads(1):
        arms = {name: _prepare(config, budget) for name, config in configs.items()}
        for number in range(budget.rounds):
            for name, state in arms.items():
                seconds = _time_steps(state, budget.steps)
                measured.add_scalar("cost.step_seconds", name, number, seconds)
                mebibytes = _measure_memory(state) / 2**20
                measured.add_scalar("cost.memory_mib", name, number, mebibytes)
    return measured


def _prepare(config: TrialConfig, budget: StepBudget) -> TrialState:
    state = build_state(config, open_development(config.data))
    state.model.set_training(True, freeze_batch_norm=config.training.freeze_batch_norm)
    # The trunk learns after the warm-up epochs, and most steps come there.
    state.epoch = config.training.warmup_epochs
    for batch, inputs in _draw(state, budget.warmup):
        _take_step(state, batch, inputs)
    return state


def _draw(state: TrialState, count: int) -> list[tuple[Batch, Tensor]]:
    """Makes the inputs of some steps; an epoch with fewer is gone through again."""
    batches = list(islice(training_batches(state), count))
    return [(batch, inputs.to(state.device)) for batch, inputs in islice(cycle(batches), count)]


def _time_steps(state: TrialState, count: int) -> float:
    seconds = []
    for batch, inputs in _draw(state, count):
        _wait_for(state.device)
        started = time.perf_counter()
        _take_step(state, batch, inputs)
        _wait_for(state.device)
        seconds.append(time.perf_counter() - started)
    return median(seconds)


def _measure_memory(state: TrialState) -> int:
    ((batch, inputs),) = _draw(state, 1)
    # What the former step left would be held into this one and hide its successors.
    state.optimizer.zero_grad(set_to_none=True)
    state.loss.diagnostics = {}
    return measure_peak_bytes(lambda: _take_step(state, batch, inputs), device=state.device)


def _take_step(state: TrialState, batch: Batch, inputs: Tensor) -> None:
    take_step(state, step=0, batch=batch, inputs=inputs)


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


_WARMUP_STEPS = 2


def measure_seconds_per_image(
    config: TrialConfig, data: DevelopmentData, *, steps: int = 6
) -> float:
    """Returns the seconds of a training step divided by its images, after a short warm-up."""
    with limited_threads(config.training.cpu_threads):
        state = build_state(config, data)
        state.model.set_training(True, freeze_batch_norm=config.training.freeze_batch_norm)
        started, measured = 0.0, 0
        for step, (batch, inputs) in enumerate(training_batches(state)):
            if step == _WARMUP_STEPS:
                started, measured = time.perf_counter(), 0
            take_step(state, step=step, batch=batch, inputs=inputs)
            measured += len(batch.indices)
            if step + 1 == _WARMUP_STEPS + steps:
                break
        return (time.perf_counter() - started) / measured if started and measured else 0.0
