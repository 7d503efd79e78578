"""The state of a running trial: built from a configuration, restored from a checkpoint."""

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dml_core.config import TrialConfig
from dml_core.data.inputs import Inputs, Targets, make_targets
from dml_core.data.prepared import DevelopmentData
from dml_core.devices import choose_device, describe_device
from dml_core.losses.base import MetricLoss
from dml_core.losses.proxies import ProxyLoss
from dml_core.losses.registry import build_loss_from_config
from dml_core.models.building import build_model
from dml_core.models.embedding_model import EmbeddingModel, place_model
from dml_core.samplers import BatchSampler, build_sampler
from dml_core.training.activations import ActivationInputs, make_inputs
from dml_core.training.checkpoint import Checkpoint, weights_must_fit
from dml_core.training.ddp import WorkerGroup
from dml_core.training.determinism import seeded_torch
from dml_core.training.optimizers import build_optimizer
from dml_core.trials.key import (
    KeyParts,
    add_own_code,
    hash_training_code,
    list_differences,
    make_parts,
    own_parts,
    read_libraries,
)


@dataclass
class TrialState:
    """The objects that training changes and those that it reads."""

    config: TrialConfig
    device: torch.device
    model: EmbeddingModel
    network: Callable[[Tensor], Tensor]
    """The model from this trial's inputs on: pixels, or cached activations."""
    loss: MetricLoss
    optimizer: Optimizer
    sampler: BatchSampler
    targets: Targets
    train_inputs: Inputs
    validation_inputs: Inputs
    in_channels: int
    data_hash: str
    split_hash: str
    group: WorkerGroup | None = None
    """The ranks that share each batch; None where this process trains alone."""
    epoch: int = 0
    best_epoch: int = 0
    best_score: float = float("-inf")
    best_model: dict[str, Any] | None = None
    frozen_state: dict[str, Tensor] | None = None
    """Weights that never change, for checkpoints; collected once."""

    @property
    def num_steps(self) -> int:
        """Steps of the whole training."""
        return len(self.sampler) * self.config.training.epochs

    @property
    def loader_workers(self) -> int:
        """Threads that prefetch batches; 0 for cached activations on the CPU.

        There a batch is a copy from memory, which is faster than handing it over.
        """
        if isinstance(self.train_inputs, ActivationInputs) and self.device.type == "cpu":
            return 0
        return self.config.training.loader_workers


def build_state(
    config: TrialConfig, data: DevelopmentData, *, group: WorkerGroup | None = None
) -> TrialState:
    """Returns the state of a trial before its first step."""
    device = choose_device(config.training.device)
    targets = make_targets(data.train, config)
    sampler = build_sampler(
        config.sampler, labels=targets.classes, continuous=targets.continuous, seed=config.seed
    )
    model, loss = _build_modules(config, data, num_classes=targets.num_classes, device=device)
    inputs = make_inputs(model, data, config, device=device)
    network: Callable[[Tensor], Tensor] = model.forward_from if inputs.are_activations else model
    if config.training.compile:
        network = torch.compile(network)
    return TrialState(
        config=config,
        device=device,
        model=model,
        network=network,
        loss=loss,
        optimizer=build_trial_optimizer(config, model=model, loss=loss, device=device),
        sampler=sampler,
        targets=targets,
        train_inputs=inputs.train,
        validation_inputs=inputs.validation,
        in_channels=data.info.channels,
        data_hash=data.info.content_hash,
        split_hash=data.info.split_hash,
        group=group,
    )


def _build_modules(
    config: TrialConfig, data: DevelopmentData, *, num_classes: int, device: torch.device
) -> tuple[EmbeddingModel, MetricLoss]:
    model = build_trial_model(config, in_channels=data.info.channels, device=device)
    with seeded_torch(config.seed, "initial proxies"):
        loss = build_loss_from_config(
            config.loss, num_classes=num_classes, embedding_dim=config.model.embedding_dim
        )
    # One gradient row per sampled proxy instead of one per class.
    if isinstance(loss, ProxyLoss) and loss.draws_subset:
        loss.sparse_gradient = True
    return model, loss.to(device)


def build_trial_model(
    config: TrialConfig, *, in_channels: int, device: torch.device
) -> EmbeddingModel:
    """Returns the network of a trial before its first step."""
    with seeded_torch(config.seed, "model"):
        model = build_model(config, in_channels=in_channels)
    place_model(model, device=device, channels_last=config.training.channels_last)
    return model


def build_trial_optimizer(
    config: TrialConfig, *, model: EmbeddingModel, loss: nn.Module, device: torch.device
) -> Optimizer:
    """Returns a fresh optimiser over trunk, head and proxies."""
    parts: dict[str, Iterable[nn.Parameter]] = {
        **model.parameter_groups(),
        "proxies": loss.parameters(),
    }
    samples_rows = isinstance(loss, ProxyLoss) and loss.sparse_gradient
    return build_optimizer(config.optimizer, parts=parts, device=device, samples_rows=samples_rows)


def take_checkpoint(state: TrialState) -> Checkpoint:
    """Returns the checkpoint of a state; its tensors still belong to the trial."""
    return Checkpoint(
        config=state.config,
        epoch=state.epoch,
        model=_collect_model(state),
        loss=state.loss.state_dict(),
        optimizer=state.optimizer.state_dict(),
        best_epoch=state.best_epoch,
        best_score=state.best_score,
        best_model=state.best_model or {},
        in_channels=state.in_channels,
        num_classes=state.targets.num_classes,
        label_scale=tuple(float(scale) for scale in state.targets.label_scale),
        data_hash=state.data_hash,
        split_hash=state.split_hash,
        made_with=describe_maker(state.config, state.device),
    )


def _collect_model(state: TrialState) -> dict[str, Tensor]:
    """Returns the `state_dict` of the model; the frozen part is collected only once."""
    if state.frozen_state is None:
        state.frozen_state = state.model.constant_state()
    return state.model.learned_state(copy.copy(state.frozen_state))


def restore_state(state: TrialState, checkpoint: Checkpoint) -> None:
    """Loads a checkpoint into a freshly built state.

    Raises:
        ValueError: when the checkpoint belongs to another key.
    """
    _check_same_key(state, checkpoint)
    with weights_must_fit():
        state.model.load_state_dict(checkpoint.model)
        state.loss.load_state_dict(checkpoint.loss)
        state.optimizer.load_state_dict(checkpoint.optimizer)
    state.epoch = checkpoint.epoch
    state.best_epoch = checkpoint.best_epoch
    state.best_score = checkpoint.best_score
    state.best_model = checkpoint.best_model or None


def describe_maker(config: TrialConfig, device: torch.device) -> dict[str, str]:
    """Returns the parts of a trial's key that a checkpoint holds beside configuration and data."""
    return {
        "training code": add_own_code(hash_training_code(), config),
        **read_libraries(),
        "device": describe_device(device),
    }


def _check_same_key(state: TrialState, checkpoint: Checkpoint) -> None:
    data = f"{state.data_hash}/{state.split_hash}"
    now = own_parts(state.config, data=data, device=state.device)
    then = _read_parts(checkpoint, default=now)
    if state.group is not None and not state.group.is_rank_zero:
        # The other ranks may run on other machines than the one that wrote the checkpoint.
        then = replace(then, device=now.device)
    if differences := list_differences(then, now):
        listed = "".join(f"\n  - {line}" for line in differences)
        raise ValueError(
            "a trial resumes only with the configuration, data, training code, libraries and kind "
            "of device that it started with. "
            f"These differ:{listed}\nStart afresh with another output folder, or set these back."
        )


def _read_parts(checkpoint: Checkpoint, *, default: KeyParts) -> KeyParts:
    """Returns the parts of a checkpoint's key; an old checkpoint does not name its maker."""
    maker = dict(checkpoint.made_with)
    code, device = maker.pop("training code", default.code), maker.pop("device", default.device)
    return make_parts(
        checkpoint.config,
        code=code,
        data=f"{checkpoint.data_hash}/{checkpoint.split_hash}",
        libraries=maker or default.libraries,
        device=device,
    )
