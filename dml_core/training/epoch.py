"""One epoch of training: its batches, and the gradient step."""

import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from dml_core.data.inputs import ALL
from dml_core.data.parallel import prefetch
from dml_core.devices import runs_in_bfloat16
from dml_core.samplers import Batch
from dml_core.seeding import numpy_stream, torch_stream
from dml_core.training.ddp import embed_batch, seed_all_ranks, seed_rank, sync_gradients
from dml_core.training.determinism import seeded_torch
from dml_core.training.optimizers import (
    compute_learning_rate_factor,
    get_learning_rates,
    set_learning_rates,
    with_dense_gradient,
)
from dml_core.training.report import EpochReport
from dml_core.training.state import TrialState

# Reading a loss from a GPU waits for the GPU, so it is checked less often there.
_STEPS_BETWEEN_CHECKS_ON_GPU = 16


class Diverged(Exception):
    """The loss of a step is not finite."""

    def __init__(self, step: int, loss: float) -> None:
        super().__init__(f"loss is {loss} at step {step}")
        self.step, self.loss = step, loss


def train_epoch(state: TrialState) -> EpochReport:
    """Trains for one epoch and returns its report, without validation.

    Raises:
        Diverged: when a loss is not finite; the epoch ends there.
    """
    _set_training_mode(state)
    steps, started = _StepLog(), time.perf_counter()
    with seeded_torch(state.config.seed, "network", epoch=state.epoch):
        for step, (batch, inputs) in enumerate(training_batches(state)):
            loss = take_step(state, step=step, batch=batch, inputs=inputs)
            steps.add(batch, loss, state.loss.diagnostics)
            if _is_check_due(state, step):
                _check_finite(steps.losses)
    return _make_report(state, steps, seconds=time.perf_counter() - started)


def training_batches(state: TrialState) -> Iterator[tuple[Batch, Tensor]]:
    """Yields the batches of the state's epoch with their inputs, prefetched by loader workers.

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


def take_step(state: TrialState, *, step: int, batch: Batch, inputs: Tensor) -> Tensor:
    """Updates the weights by one batch and returns its loss: the gradient step of a training."""
    factor = compute_learning_rate_factor(
        state.config.schedule,
        epoch=state.epoch,
        step=state.epoch * len(state.sampler) + step,
        num_steps=state.num_steps,
    )
    set_learning_rates(state.optimizer, factor)
    loss = compute_gradients(state, step=step, batch=batch, inputs=inputs)
    _clip_gradients(state)
    state.optimizer.step()
    return loss


def compute_gradients(state: TrialState, *, step: int, batch: Batch, inputs: Tensor) -> Tensor:
    """Returns the loss of a batch and stores its gradients in the parameters."""
    _reseed_loss(state, step=step)
    embeddings = _embed(state, step=step, batch=batch, inputs=inputs)
    labels = _labels_of(state, batch)
    loss = state.loss(embeddings, labels, _anchors_of(batch, state.device))
    state.optimizer.zero_grad(set_to_none=True)
    loss.backward()
    # All ranks have the embeddings of the whole batch, so their memories are equal.
    state.loss.remember(embeddings, labels)
    value: Tensor = loss.detach()
    if state.group is not None:
        network = [p for part in state.model.parameter_groups().values() for p in part]
        sync_gradients(state.group, network=network, loss=state.loss.parameters())
        state.group.broadcast(value)
    return value


def _embed(state: TrialState, *, step: int, batch: Batch, inputs: Tensor) -> Tensor:
    """Returns the embeddings of the whole batch."""
    config, device, group = state.config, state.device, state.group
    in_bfloat16 = runs_in_bfloat16(config.training.precision, device)
    autocast = torch.autocast(device.type, dtype=torch.bfloat16) if in_bfloat16 else nullcontext()
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
    """Seeds a loss that samples proxies for one step."""
    if getattr(state.config.loss, "proxy_ratio", 1.0) < 1:
        stream = torch_stream(state.config.seed, "proxies", epoch=state.epoch, step=step)
        state.loss.reseed(stream)  # type: ignore[operator]


def _set_training_mode(state: TrialState) -> None:
    training = state.config.training
    state.model.set_training(True, freeze_batch_norm=training.freeze_batch_norm)
    state.loss.train()
    state.loss.start_epoch(state.epoch)
    for parameter in state.model.parameter_groups()["trunk"]:
        parameter.requires_grad_(state.epoch >= training.warmup_epochs)


def _clip_gradients(state: TrialState) -> None:
    training = state.config.training
    if training.gradient_clip == "none":
        return
    parameters = [
        with_dense_gradient(parameter)
        for group in state.optimizer.param_groups
        for parameter in group["params"]
    ]
    if training.gradient_clip == "value":
        torch.nn.utils.clip_grad_value_(parameters, training.gradient_clip_at)
    else:
        torch.nn.utils.clip_grad_norm_(parameters, training.gradient_clip_at)


@dataclass
class _StepLog:
    """Losses and scalar diagnostics of an epoch's steps, kept as tensors until its end."""

    losses: list[Tensor] = field(default_factory=list)
    diagnostics: dict[str, list[Tensor]] = field(default_factory=dict)
    num_images: int = 0

    def add(self, batch: Batch, loss: Tensor, diagnostics: dict[str, Tensor]) -> None:
        self.losses.append(loss)
        self.num_images += len(batch.indices)
        for name, value in diagnostics.items():
            if value.ndim == 0:
                self.diagnostics.setdefault(name, []).append(value)


def _is_check_due(state: TrialState, step: int) -> bool:
    every = 1 if state.device.type == "cpu" else _STEPS_BETWEEN_CHECKS_ON_GPU
    return (step + 1) % every == 0 or step + 1 == len(state.sampler)


def _check_finite(losses: list[Tensor]) -> None:
    recent = losses[-_STEPS_BETWEEN_CHECKS_ON_GPU:]
    bad = (~torch.isfinite(torch.stack(recent))).nonzero()
    if len(bad):
        first = int(bad[0])
        raise Diverged(len(losses) - len(recent) + first, float(recent[first]))


def _make_report(state: TrialState, steps: _StepLog, *, seconds: float) -> EpochReport:
    diagnostics = {name: _mean(values) for name, values in steps.diagnostics.items()}
    return EpochReport(
        epoch=state.epoch + 1,
        num_epochs=state.config.training.epochs,
        train_loss=_mean(steps.losses) if steps.losses else float("nan"),
        active_fraction=diagnostics.pop("active_fraction", None),
        diagnostics=diagnostics,
        learning_rates=get_learning_rates(state.optimizer),
        images_per_second=steps.num_images / max(seconds, 1e-9),
        train_seconds=seconds,
    )


def _mean(values: list[Tensor]) -> float:
    return float(torch.stack(values).double().mean())
