"""A training step against the bare one: forward, backward, optimiser, tensors in memory."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.drawn_data import drawn_trial
from benchmarks.rows import Row, make_row, milliseconds
from benchmarks.settings import Settings
from benchmarks.timing import time_in_turns
from dml_core.config import TrialConfig
from dml_core.data.prepared import open_development
from dml_core.training.determinism import limited_threads, seeded_torch
from dml_core.training.epoch import train_epoch, training_batches
from dml_core.training.state import TrialState, build_state

GROUP = "steps"
# A constant learning rate, so that the bare loop needs no schedule.
SHARED: dict[str, Any] = {"schedule.name": "constant", "data.max_classes": 64}
NETWORKS: dict[str, dict[str, Any]] = {
    "convnet, 28 px": {"data.images_per_class": 96},
    "resnet18, 64 px": {
        "model.backbone": "torchvision:resnet18",
        "data.image_size_px": 64,
        "sampler.batch_size": 60,
        "data.images_per_class": 10,
    },
}
SMALL: dict[str, dict[str, Any]] = {
    "convnet, 28 px": {"data.images_per_class": 24},
    "resnet18, 32 px": {
        "model.backbone": "torchvision:resnet18",
        "data.image_size_px": 32,
        "sampler.batch_size": 20,
        "data.images_per_class": 4,
    },
}
ROUNDS = 3

Batches = list[tuple[Tensor, Tensor]]


def run_steps(settings: Settings) -> list[Row]:
    """Returns a row for each network."""
    rows = []
    for name, knobs in (SMALL if settings.short else NETWORKS).items():
        with drawn_trial(**SHARED, **knobs) as config, limited_threads(1):
            rows.append(_measure(name, config, settings))
    return rows


def _measure(name: str, config: TrialConfig, settings: Settings) -> Row:
    ours, bare = (build_state(config, open_development(config.data)) for _ in range(2))
    batches = _read_batches(bare)
    difference = _compare_epoch(ours, bare, batches)
    runs: dict[str, Callable[[], object]] = {
        "ours": lambda: train_epoch(ours),
        "bare": lambda: _train_bare(bare, batches),
    }
    # Both have just trained an epoch for the comparison, and are warm.
    seconds = time_in_turns(runs, settings, rounds=ROUNDS, warm_up=False)
    per_step = {key: [each / len(batches) for each in taken] for key, taken in seconds.items()}
    return make_row(
        GROUP,
        f"{name}, batch {config.sampler.batch_size}",
        ours=milliseconds(per_step["ours"]),
        theirs=milliseconds(per_step["bare"]),
        target=1.05,
        against="bare step, tensors in memory",
        note="augmentation and reading included",
        difference=difference,
    )


def _read_batches(state: TrialState) -> Batches:
    """Returns the inputs and labels of the first epoch."""
    classes = state.targets.classes
    return [
        (inputs, torch.from_numpy(classes[batch.indices]))
        for batch, inputs in training_batches(state)
    ]


def _train_bare(state: TrialState, batches: Batches) -> None:
    """The loop of a bare script: network, loss and optimiser only."""
    model, loss, optimizer = state.model, state.loss, state.optimizer
    for inputs, labels in batches:
        optimizer.zero_grad(set_to_none=True)
        loss(model(inputs), labels).backward()
        optimizer.step()


def _compare_epoch(ours: TrialState, bare: TrialState, batches: Batches) -> float:
    """Returns the largest difference of any weight after both have trained the same epoch."""
    start = copy.deepcopy(bare.model.state_dict())
    bare.model.train()
    train_epoch(ours)
    with seeded_torch(bare.config.seed, "network"):
        _train_bare(bare, batches)
    weights = [*ours.model.state_dict().items(), *ours.loss.state_dict().items()]
    others = {**bare.model.state_dict(), **bare.loss.state_dict()}
    assert any(not torch.equal(start[name], others[name]) for name in start), "nothing was learned"
    return max(float((tensor - others[name]).abs().max()) for name, tensor in weights)
