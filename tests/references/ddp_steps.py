"""First steps of trials by one process and by several ranks, for tests of distributed training."""

import multiprocessing
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from dml_core.config.losses import (
    ExpandableLossBase,
    LossConfig,
    MemoryLossBase,
    ProxyLossBase,
)
from dml_core.data.prepared import open_development
from dml_core.losses.registry import LOSSES
from dml_core.training.ddp import WorkerGroup
from dml_core.training.ddp_local import LOOPBACK, connect_to_store, init_worker_group, start_store
from dml_core.training.determinism import limited_threads
from dml_core.training.epoch import compute_gradients, training_batches
from dml_core.training.state import TrialState, build_state
from tests.references.tiny_trials import tiny_config

LABELS = ["rotation", "scale"]
KINDS = [get_args(tagged)[0] for tagged in get_args(get_args(LossConfig)[0])]
DENSE = {
    "sampler__name": "dense",
    "sampler__anchors_per_batch": 2,
    "sampler__nearest": 2,
    "loss__anchors": "heads",
}


def named(base: type) -> list[str]:
    """Returns the losses whose knobs are of a kind."""
    return [kind.model_fields["name"].default for kind in KINDS if issubclass(kind, base)]


# A batch of 16: two workers have 8 each; three have 6, 5 and 5.
VARIANTS: dict[str, dict[str, Any]] = {
    **{name: {"loss__name": name} for name in LOSSES},
    **{
        f"{name} with a proxy ratio": {"loss__name": name, "loss__proxy_ratio": 0.9}
        for name in named(ProxyLossBase)
    },
    **{
        f"{name} with expansion": {"loss__name": name, "loss__expansion__points": 2}
        for name in named(ExpandableLossBase)
    },
    **{
        f"{name} with memory": {"loss__name": name, "loss__memory__size": 24}
        for name in named(MemoryLossBase)
    },
    "triplet, all": {"loss__name": "triplet", "loss__mining": "all"},
    "triplet, hard": {"loss__name": "triplet", "loss__mining": "hard"},
    "log_ratio, heads": {"loss__name": "log_ratio", **DENSE},
    "dense_triplet, heads": {"loss__name": "dense_triplet", **DENSE},
    **{
        f"{name}, matryoshka": {"loss__name": name, "loss__matryoshka": [4, 8]}
        for name in ("proxy_anchor", "triplet")
    },
    "own loss": {"loss__name": "python:tests.references.own_losses:WeightedPairs"},
    "lora": {"trunk__train": "lora"},
    "of pytorch-metric-learning": {"loss__name": "pml:NormalizedSoftmaxLoss"},
    "flipped at random": {"augmentation__flip": "image"},
    "frozen batch norm": {"training__freeze_batch_norm": True},
    "cached activations": {"trunk__train": "from:stage2", "trunk__cache_views": 2},
}

Step = dict[str, Tensor]
"""The loss, every parameter's gradient, and the running statistics after a step; twice, since the
same step is taken in double and in single precision."""


def take_first_steps(root: Path, group: WorkerGroup | None = None) -> dict[str, Step]:
    """Returns the first step of a trial with each loss, without the optimiser's update."""
    with limited_threads(1):
        return {name: _take_step(root, knobs, group) for name, knobs in VARIANTS.items()}


def _take_step(root: Path, knobs: dict[str, Any], group: WorkerGroup | None) -> Step:
    workers = group.world_size if group else 1
    config = tiny_config(root, data__continuous_labels=LABELS, trial__workers=workers, **knobs)
    state = build_state(config, open_development(config.data), group=group)
    state.model.set_training(True, freeze_batch_norm=config.training.freeze_batch_norm)
    _fill_lora(state)
    batch, inputs = next(training_batches(state))
    found: Step = {}
    # Single last: its rounding stays in the running statistics.
    for precision, dtype in (("double", torch.float64), ("single", torch.float32)):
        state.model.to(dtype)
        state.loss.to(dtype)
        _fill_memory(state)
        loss = compute_gradients(state, step=0, batch=batch, inputs=inputs)
        found |= {f"{precision}: {name}": value for name, value in _look_at(state, loss).items()}
    return found


def _fill_lora(state: TrialState) -> None:
    """Gives values to LoRA's second factors: at zero, where they begin, the first learn nothing."""
    stream = torch.Generator().manual_seed(0)
    for name, parameter in state.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, generator=stream)


def _fill_memory(state: TrialState) -> None:
    """Stores the same past embeddings on every rank; of losses without a memory, nothing.

    Their own past embeddings would lie where the batch lies up to rounding, which decides then
    whether a pair counts.
    """
    stream = torch.Generator().manual_seed(0)
    past = torch.randn(24, state.config.model.embedding_dim, generator=stream)
    state.loss.remember(past.to(next(state.model.parameters()).dtype), torch.arange(24) % 3)


def _look_at(state: TrialState, loss: Tensor) -> Step:
    found = {"loss": loss.clone()}
    for module in (state.model, state.loss):
        for name, parameter in module.named_parameters():
            if parameter.grad is not None:
                found[f"gradient of {name}"] = parameter.grad.to_dense().clone()
    buffers = [*state.model.named_buffers(), *state.loss.named_buffers()]
    return found | {name: buffer.clone() for name, buffer in buffers}


def take_first_steps_together(
    root: Path, folder: Path, *, world_size: int
) -> list[dict[str, Step]]:
    """Returns the state of each rank after the first steps."""
    spawn = multiprocessing.get_context("spawn")
    store = start_store()
    files = [folder / f"{rank}-of-{world_size}.pt" for rank in range(world_size)]
    processes = [
        spawn.Process(target=_work, args=(rank, world_size, store.port, root, file), daemon=True)
        for rank, file in enumerate(files)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=600)
    ended = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    assert ended == [0] * world_size
    return [torch.load(file) for file in files]


def _work(rank: int, world_size: int, port: int, root: Path, file: Path) -> None:
    group = init_worker_group(
        connect_to_store(LOOPBACK, port),
        rank=rank,
        world_size=world_size,
        address=LOOPBACK,
        device=torch.device("cpu"),
    )
    torch.save(take_first_steps(root, group), file)
    group.barrier("done")
    group.close()
