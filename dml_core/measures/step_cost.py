"""Measures the time and the memory of a training step."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice, pairwise
from statistics import median

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from dml_core.config import TrialConfig
from dml_core.data.prepared import DevelopmentData, open_development
from dml_core.devices import choose_device
from dml_core.measures.results import Measured, WinnerFolder
from dml_core.process_memory import prepare_memory
from dml_core.samplers import Batch
from dml_core.studies.cost import count_images_per_epoch
from dml_core.training.activations import CachedActivations, is_cached, make_cached_activations
from dml_core.training.determinism import limited_threads
from dml_core.training.epoch import take_step, training_batches
from dml_core.training.state import TrialState, build_state, build_trial_model
from dml_core.training.trial import validate

_ALLOCATION = "[memory]"


def measure_peak_bytes(work: Callable[[], object], *, device: torch.device) -> int:
    """Returns the peak bytes of tensors during some work, beyond those allocated before it.

    On a CPU the allocations of torch are counted. The resident size of the process would include
    memory that the allocator kept from earlier work, so one arm would hide another.
    """
    if device.type == "cuda":
        return _measure_on_gpu(work, device)
    # Silences the profiler's message about a missing GPU.
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
    """Length of the measurement."""

    rounds: int = 5
    """Rounds over all arms, so that a slow moment of the machine affects all of them."""
    steps: int = 5
    """Timed steps of an arm per round; the median counts."""
    warmup: int = 2
    """Steps before the first round, in which the optimiser allocates its state."""


def measure_step_cost(
    winners: Sequence[WinnerFolder], budget: StepBudget | None = None
) -> Measured:
    """Returns the time, memory and trained parameters of a step, by arm and round.

    They are `cost.step_seconds`, `cost.memory_mib` and `cost.trained_parameters`. Each arm is
    measured with the configuration of its winner of the first seed.
    """
    configs: dict[str, TrialConfig] = {}
    for winner in winners:
        if winner.arm not in configs:
            configs[winner.arm] = winner.load().config
    return measure_configs(configs, budget or StepBudget())


def measure_configs(configs: Mapping[str, TrialConfig], budget: StepBudget) -> Measured:
    """Returns the cost of a training step of each configuration, by name and round.

    A step is forward, loss, backward and optimiser; its inputs are made before the clock starts.
    The memory is the peak of a step beyond weights, optimiser state and inputs; gradients count.
    The parameters are the numbers of trunk and head that learn, without the proxies of the loss,
    which the trained model does not have. It uses one thread and the training data of the
    configurations.
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
                count = float(_count_trained(state))
                measured.add_scalar("cost.trained_parameters", name, number, count)
    return measured


def _count_trained(state: TrialState) -> int:
    return sum(p.numel() for part in state.model.parameter_groups().values() for p in part)


def _prepare(config: TrialConfig, budget: StepBudget) -> TrialState:
    state = build_state(config, open_development(config.data))
    state.model.set_training(True, freeze_batch_norm=config.training.freeze_batch_norm)
    # After the warm-up epochs the trunk learns too, as in most steps.
    state.epoch = config.training.warmup_epochs
    for batch, inputs in _draw_batches(state, budget.warmup):
        _take_step(state, batch, inputs)
    return state


def _draw_batches(state: TrialState, count: int) -> list[tuple[Batch, Tensor]]:
    """Returns the batches and inputs of some steps; a shorter epoch is repeated."""
    batches = list(islice(training_batches(state), count))
    return [(batch, inputs.to(state.device)) for batch, inputs in islice(cycle(batches), count)]


def _time_steps(state: TrialState, count: int) -> float:
    seconds = []
    for batch, inputs in _draw_batches(state, count):
        _wait_for(state.device)
        started = time.perf_counter()
        _take_step(state, batch, inputs)
        _wait_for(state.device)
        seconds.append(time.perf_counter() - started)
    return median(seconds)


def _measure_memory(state: TrialState) -> int:
    ((batch, inputs),) = _draw_batches(state, 1)
    # Tensors of the previous step would be freed during this one and lower its peak.
    state.optimizer.zero_grad(set_to_none=True)
    state.loss.diagnostics = {}
    return measure_peak_bytes(lambda: _take_step(state, batch, inputs), device=state.device)


def _take_step(state: TrialState, batch: Batch, inputs: Tensor) -> None:
    take_step(state, step=0, batch=batch, inputs=inputs)


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


_WARMUP_STEPS = 4
_MOST_SECONDS = 15.0
"""After this time, the steps measured so far are enough."""


@dataclass(frozen=True)
class TrialCost:
    """What the parts of a trial take on this machine, in seconds."""

    step: float
    validation: float
    steps_per_epoch: int

    def seconds(self, config: TrialConfig) -> float:
        """Returns about how long a trial takes: its steps and its validations."""
        training = config.training
        validations = -(-training.epochs // training.validate_every)
        return training.epochs * self.steps_per_epoch * self.step + validations * self.validation


def measure_trial(config: TrialConfig, data: DevelopmentData, *, steps: int = 16) -> TrialCost:
    """Measures a few steps and one validation as they run in a trial, inputs included.

    The median step counts: in the first ones the network and its inputs warm up. Slow steps are
    measured a few times only.
    """
    # As in every worker.
    prepare_memory()
    with limited_threads(config.training.cpu_threads):
        state = build_state(config, data)
        state.model.set_training(True, freeze_batch_norm=config.training.freeze_batch_norm)
        times = [time.perf_counter()]
        is_enough = False
        while not is_enough:
            for step, (batch, inputs) in enumerate(training_batches(state)):
                take_step(state, step=step, batch=batch, inputs=inputs)
                times.append(time.perf_counter())
                measured = len(times) - 1 - _WARMUP_STEPS
                is_long = measured > 0 and times[-1] - times[0] > _MOST_SECONDS
                if is_enough := measured >= steps or is_long:
                    break
        each = [after - before for before, after in pairwise(times)]
        # The last epoch is validated whatever training.validate_every is.
        state.epoch = config.training.epochs
        started = time.perf_counter()
        validate(state, data)
        validation = time.perf_counter() - started
    images = count_images_per_epoch(config, len(data.train))
    return TrialCost(median(each[_WARMUP_STEPS:]), validation, images // config.sampler.batch_size)


_MEASURED_IMAGES = 32


@dataclass(frozen=True)
class FrozenCost:
    """What the frozen part of a trunk takes on this machine, in seconds."""

    image: float
    """An image through it; 0 where nothing is frozen."""
    num_missing: int
    """Images that a training needs and that are not computed yet, one for each view."""

    @property
    def seconds(self) -> float:
        """Returns about how long the computation of the missing ones takes in one process."""
        return self.image * self.num_missing


def measure_frozen(config: TrialConfig, data: DevelopmentData) -> FrozenCost:
    """Measures the frozen part of a trunk on a few images, inputs included."""
    prepare_memory()
    device = choose_device(config.training.device)
    with limited_threads(config.training.cpu_threads):
        model = build_trial_model(config, in_channels=data.info.channels, device=device)
        if not is_cached(model, config):
            return FrozenCost(0.0, 0)
        found = make_cached_activations(model, data, config, device=device)
        count = min(len(found[0]), _MEASURED_IMAGES)
        # The first pass warms up.
        for _ in range(2):
            started = time.perf_counter()
            list(found[0].compute(0, 0, count))
            seconds = time.perf_counter() - started
    return FrozenCost(seconds / count, sum(_count_missing(each) for each in found))


def _count_missing(activations: CachedActivations) -> int:
    views = range(activations.num_views)
    return len(activations) * sum(not activations.stored.has_view(view) for view in views)
