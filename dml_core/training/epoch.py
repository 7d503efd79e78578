"""One pass over the training data."""

import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from dml_core.data.inputs import ALL
from dml_core.data.parallel import prefetch
from dml_core.samplers import Batch
from dml_core.seeding import numpy_stream, torch_stream
from dml_core.training.ddp import embed_batch, seed_all_ranks, seed_rank, sync_gradients
from dml_core.training.determinism import seeded_torch
from dml_core.training.optimizers import compute_learning_rate_factor, set_learning_rates
from dml_core.training.sampled_rows import stand_in_for
from dml_core.training.state import TrialState

# Looking at a GPU's loss waits for the GPU, so there it is looked at only so often.
_STEPS_BETWEEN_CHECKS_ON_GPU = 16


@dataclass
class EpochNumbers:
    """What an epoch leaves behind."""

    losses: list[Tensor] = field(default_factory=list)
    diagnostics: dict[str, list[Tensor]] = field(default_factory=dict)
    num_images: int = 0
    seconds: float = 0.0
    diverged_at: int | None = None
    """First step with a loss that is not finite."""

    def mean_loss(self) -> float:
        """Returns the mean loss over the epoch's steps."""
        return float(torch.stack(self.losses).double().mean()) if self.losses else float("nan")

    def mean_diagnostics(self) -> dict[str, float]:
        """Returns the mean of each scalar diagnostic over the steps that gave it."""
        return {
            name: float(torch.stack(values).double().mean())
            for name, values in self.diagnostics.items()
        }


def train_epoch(state: TrialState) -> EpochNumbers:
    """Trains for one epoch; stops early at a loss that is not finite."""
    config, numbers = state.config, EpochNumbers()
    in_warmup = state.epoch < config.training.warmup_epochs
    state.model.set_training(True, freeze_batch_norm=config.training.freeze_batch_norm)
    state.loss.train()
    _set_trunk_learning(state, learns=not in_warmup)
    check_every = 1 if state.device.type == "cpu" else _STEPS_BETWEEN_CHECKS_ON_GPU
    started = time.perf_counter()
    with seeded_torch(config.seed, "network", epoch=state.epoch):
        for step, (batch, inputs) in enumerate(training_batches(state)):
            take_step(state, numbers, step=step, batch=batch, inputs=inputs)
            is_last = step + 1 == len(state.sampler)
            if (step + 1) % check_every == 0 or is_last:
                numbers.diverged_at = _find_divergence(numbers.losses)
                if numbers.diverged_at is not None:
                    break
    numbers.seconds = time.perf_counter() - started
    return numbers


def training_batches(state: TrialState) -> Iterator[tuple[Batch, Tensor]]:
    """Yields the batches of the state's epoch with their inputs, made ahead by the workers.

    In distributed training the inputs are those of this rank's shard.
    """
    seed, epoch = state.config.seed, state.epoch

    def make(numbered: tuple[int, Batch]) -> tuple[Batch, Tensor]:
        step, batch = numbered
        stream = numpy_stream(seed, "augmentation", epoch=epoch, step=step)
        shard = state.group.shard(len(batch.indices)) if state.group else ALL
        inputs = state.train_inputs.augmented(batch.indices, stream, shard)
        return batch, inputs.pin_memory() if state.device.type == "cuda" else inputs

    batches = enumerate(state.sampler.epoch_batches(epoch))
    return prefetch(make, batches, workers=state.loader_workers)


def take_step(
    state: TrialState, numbers: EpochNumbers, *, step: int, batch: Batch, inputs: Tensor
) -> None:
    """Moves the weights by one batch and adds its loss and diagnostics to the numbers."""
    config = state.config
    step_of_all = state.epoch * len(state.sampler) + step
    factor = compute_learning_rate_factor(
        config.schedule, epoch=state.epoch, step=step_of_all, num_steps=state.num_steps
    )
    set_learning_rates(state.optimizer, factor)
    loss = compute_gradients(state, step=step, batch=batch, inputs=inputs)
    _clip_gradients(state)
    state.optimizer.step()
    numbers.losses.append(loss)
    numbers.num_images += len(batch.indices)
    for name, value in state.loss.diagnostics.items():
        if value.ndim == 0:
            numbers.diagnostics.setdefault(name, []).append(value)


def compute_gradients(state: TrialState, *, step: int, batch: Batch, inputs: Tensor) -> Tensor:
    """Returns the loss of a batch and leaves its gradients at the parameters."""
    _reseed_loss(state, step=step)
    embeddings = _embed(state, step=step, batch=batch, inputs=inputs)
    loss = state.loss(embeddings, _labels_of(state, batch), _anchors_of(batch, state.device))
    state.optimizer.zero_grad(set_to_none=True)
    loss.backward()
    value: Tensor = loss.detach()
    if state.group is not None:
        network = [p for part in state.model.parameter_groups().values() for p in part]
        sync_gradients(state.group, network=network, loss=state.loss.parameters())
        state.group.broadcast(value)
    return value


def _embed(state: TrialState, *, step: int, batch: Batch, inputs: Tensor) -> Tensor:
    """Returns the embeddings of the whole batch."""
    config, device, group = state.config, state.device, state.group
    uses_bfloat16 = config.training.precision == "bfloat16"
    autocast = torch.autocast(device.type, dtype=torch.bfloat16) if uses_bfloat16 else nullcontext()
    moved = inputs.to(device, non_blocking=True)
    with autocast:
        if group is None:
            return state.network(moved)
        seed_rank(group, config.seed, epoch=state.epoch, step=step)
        embeddings = embed_batch(state.network, moved, group=group, batch_size=len(batch.indices))
    seed_all_ranks(config.seed, epoch=state.epoch, step=step)
    return embeddings


def _labels_of(state: TrialState, batch: Batch) -> Tensor:
    targets = state.targets
    chosen: np.ndarray = (
        targets.continuous if state.loss.uses_continuous_labels else targets.classes
    )
    return torch.from_numpy(chosen[batch.indices]).to(state.device, non_blocking=True)


def _anchors_of(batch: Batch, device: torch.device) -> Tensor | None:
    return None if batch.anchors is None else torch.from_numpy(batch.anchors).to(device)


def _reseed_loss(state: TrialState, *, step: int) -> None:
    """Gives a loss that draws proxies its own stream for each step."""
    if getattr(state.config.loss, "proxy_ratio", 1.0) < 1:
        stream = torch_stream(state.config.seed, "proxies", epoch=state.epoch, step=step)
        state.loss.reseed(stream)  # type: ignore[operator]


def _set_trunk_learning(state: TrialState, *, learns: bool) -> None:
    for parameter in state.model.parameter_groups()["trunk"]:
        parameter.requires_grad_(learns)


def _clip_gradients(state: TrialState) -> None:
    training = state.config.training
    if training.gradient_clip == "none":
        return
    parameters = [
        stand_in_for(parameter)
        for group in state.optimizer.param_groups
        for parameter in group["params"]
    ]
    if training.gradient_clip == "value":
        torch.nn.utils.clip_grad_value_(parameters, training.gradient_clip_at)
    else:
        torch.nn.utils.clip_grad_norm_(parameters, training.gradient_clip_at)


def _find_divergence(losses: list[Tensor]) -> int | None:
    """Returns the first step whose loss is not finite, or None."""
    recent = losses[-_STEPS_BETWEEN_CHECKS_ON_GPU:]
    bad = (~torch.isfinite(torch.stack(recent))).nonzero()
    return len(losses) - len(recent) + int(bad[0]) if len(bad) else None
