"""Distributed training of one trial: one rank's view of its group, and what a step exchanges."""

# B = batch, C = channels, D = embedding dim

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from dml_core.seeding import stream_seed

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

_POLL_SECONDS = 0.02


class WorkerLost(ValueError):
    """A rank of the trial is gone; the trial can resume from its checkpoint with new workers."""


def assume_alive() -> None:
    """Does nothing; the default for a rank that cannot observe the other processes."""


class WorkerGroup:
    """One rank's view of the processes that train a trial together.

    All ranks hold the same weights and draw the same batches. Each runs the network on its shard
    of a batch; then every rank has the embeddings of the whole batch and computes the same loss.
    Only rank 0 validates, writes checkpoints, reports, and decides whether to continue.
    """

    def __init__(
        self,
        store: "Store",
        *,
        rank: int,
        world_size: int,
        check_alive: Callable[[], None] = assume_alive,
    ) -> None:
        """Wraps a store; the process group of `torch.distributed` is initialised separately.

        Args:
            store: the key-value store that all ranks reach.
            rank: this process, from 0.
            world_size: number of ranks.
            check_alive: raises WorkerLost if another rank is known to be gone.
        """
        self.rank = rank
        self.world_size = world_size
        self._store = store
        self._check_alive = check_alive

    @property
    def is_rank_zero(self) -> bool:
        """Whether this rank validates, writes and reports."""
        return self.rank == 0

    def shard_sizes(self, batch_size: int) -> list[int]:
        """Returns the number of images of each rank; the numbers differ by at most one.

        Raises:
            ValueError: when there are more ranks than images.
        """
        if batch_size < self.world_size:
            raise ValueError(
                f"trial.workers must be at most the images of a batch, so that each has one. "
                f"Got {self.world_size} workers and a batch of {batch_size} images. "
                "Lower trial.workers or raise sampler.batch_size."
            )
        smallest, rest = divmod(batch_size, self.world_size)
        return [smallest + (rank < rest) for rank in range(self.world_size)]

    def shard(self, batch_size: int) -> slice:
        """Returns which images of a batch belong to this rank."""
        sizes = self.shard_sizes(batch_size)
        start = sum(sizes[: self.rank])
        return slice(start, start + sizes[self.rank])

    def all_gather(self, rows: Tensor, *, batch_size: int) -> Tensor:
        """Returns the rows of all ranks in the order of the batch, without a gradient.

        Args:
            rows: this rank's rows, as many as its shard has.
            batch_size: rows of the whole batch.
        """
        sizes = self.shard_sizes(batch_size)
        # all_gather needs one shape on all ranks, so smaller shards are padded.
        sent = rows.new_zeros(max(sizes), *rows.shape[1:])
        sent[: len(rows)] = rows
        received = [torch.empty_like(sent) for _ in sizes]
        with _failure_is_worker_lost():
            torch.distributed.all_gather(received, sent)
        return torch.cat([each[:size] for each, size in zip(received, sizes, strict=True)])

    def all_reduce(self, values: Tensor) -> None:
        """Replaces a contiguous tensor by its sum over all ranks."""
        with _failure_is_worker_lost():
            torch.distributed.all_reduce(values)

    def broadcast(self, values: Tensor) -> None:
        """Replaces a contiguous tensor by that of rank 0."""
        with _failure_is_worker_lost():
            torch.distributed.broadcast(values, src=0)

    def set_number(self, name: str, number: int) -> None:
        """Stores a number for the other ranks under a name that was not used before."""
        with _failure_is_worker_lost():
            self._store.set(name, str(int(number)))

    def wait_for_number(self, name: str) -> int:
        """Returns the number that a rank stored under a name, once it is there.

        Unlike a collective it has no timeout: rank 0 may wait for its driver, or load a large
        dataset. It fails only if another rank is gone.
        """
        with _failure_is_worker_lost():
            while not self._store.check([name]):
                self._check_alive()
                time.sleep(_POLL_SECONDS)
            return int(self._store.get(name))

    def barrier(self, name: str) -> None:
        """Waits until all ranks have reached the barrier of this name."""
        self.set_number(f"{name} {self.rank}", 1)
        for rank in range(self.world_size):
            self.wait_for_number(f"{name} {rank}")

    def close(self) -> None:
        """Destroys the process group; ranks that still wait for this one then fail."""
        if torch.distributed.is_initialized():
            # A group that has lost a rank may refuse to be destroyed; the process ends anyway.
            with contextlib.suppress(RuntimeError):
                torch.distributed.destroy_process_group()


@contextmanager
def _failure_is_worker_lost() -> Iterator[None]:
    """Converts torch.distributed failures to WorkerLost."""
    try:
        yield
    except RuntimeError as error:
        first = str(error).strip().splitlines()[0][:300] if str(error).strip() else "no answer"
        raise WorkerLost(
            f"a worker of the trial is gone ({first}). The same command resumes from the last "
            "checkpoint."
        ) from error


class SyncBatchNorm(TorchFunctionMode):
    """Within it, batch norms in training mode take their statistics from the whole batch.

    `torch.nn.SyncBatchNorm` replaces modules and needs GPUs; this works on any network and device.
    """

    def __init__(self, group: WorkerGroup) -> None:
        super().__init__()
        self._group = group

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Calls a function of torch, or its synchronised counterpart."""
        if func is functional.batch_norm and (kwargs or {}).get("training"):
            return sync_batch_norm(self._group, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


class _Statistics(NamedTuple):
    """Statistics of the whole batch, by channel."""

    num_values: Tensor
    """(C,) number of values of a channel."""
    mean: Tensor
    """(C,)."""
    variance: Tensor
    """(C,) biased: the divisor is the count."""


def sync_batch_norm(
    group: WorkerGroup,
    values: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    *,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Returns this rank's shard of torch.nn.functional.batch_norm over the whole batch.

    Args:
        group: the ranks that share the batch.
        values: (B, C, ...) of this rank.
        running_mean: (C,) updated towards the mean of the batch.
        running_var: (C,) updated towards the unbiased variance of the batch.
        weight: (C,) scale.
        bias: (C,) offset.
        training: always true.
        momentum: weight of the batch in the running statistics.
        eps: added to the variance.
    """
    exact = values.to(torch.promote_types(values.dtype, torch.float32))
    found = _measure(group, exact.detach())
    with torch.no_grad():
        if running_mean is not None and running_var is not None:
            unbiased = found.variance * (found.num_values / (found.num_values - 1).clamp(min=1))
            running_mean.lerp_(found.mean.to(running_mean.dtype), momentum)
            running_var.lerp_(unbiased.to(running_var.dtype), momentum)
    inverse = (found.variance + eps).rsqrt()
    normal: Tensor = _Normalize.apply(exact, found.mean, inverse, found.num_values, group)
    shape = _shape(values)
    if weight is not None:
        normal = normal * weight.view(shape)
    if bias is not None:
        normal = normal + bias.view(shape)
    return normal.to(values.dtype)


def _measure(group: WorkerGroup, values: Tensor) -> _Statistics:
    """Returns the statistics of the whole batch from those of its shards."""
    axes = _axes(values)
    variance, mean = torch.var_mean(values, axes, correction=0)
    count = torch.full_like(mean, values.numel() // values.shape[1])
    # (world_size, 3, C) in double, so that only the rounding of each shard is left.
    own = torch.stack([count, mean, variance]).double().unsqueeze(0)
    counts, means, variances = group.all_gather(own, batch_size=group.world_size).unbind(1)
    total = counts.sum(0)
    shares = counts / total
    overall = (shares * means).sum(0)
    spread = (shares * (variances + (means - overall).square())).sum(0)
    return _Statistics(*(each.to(mean.dtype) for each in (total, overall, spread)))


class _Normalize(torch.autograd.Function):
    """(x - mean) / deviation, where mean and deviation depend on the x of all ranks."""

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, mean: Tensor, inverse: Tensor, count: Tensor, group: WorkerGroup
    ) -> Tensor:
        shape = _shape(values)
        normal = (values - mean.view(shape)) * inverse.view(shape)
        ctx.save_for_backward(normal, inverse)
        ctx.count, ctx.group = count, group
        return normal

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        normal, inverse = ctx.saved_tensors
        axes, shape = _axes(normal), _shape(normal)
        sums = torch.stack([gradient.sum(axes), (gradient * normal).sum(axes)])
        ctx.group.all_reduce(sums)
        mean, along = (sums / ctx.count).unbind(0)
        moved = gradient - mean.view(shape) - normal * along.view(shape)
        return moved * inverse.view(shape), None, None, None, None


def _axes(values: Tensor) -> list[int]:
    return [axis for axis in range(values.ndim) if axis != 1]


def _shape(values: Tensor) -> list[int]:
    return [1, values.shape[1], *[1] * (values.ndim - 2)]


def embed_batch(
    network: Callable[[Tensor], Tensor], inputs: Tensor, *, group: WorkerGroup, batch_size: int
) -> Tensor:
    """Returns the (B, D) embeddings of the whole batch; gradients flow to this rank's shard.

    Args:
        network: maps inputs to embeddings; its batch norms see the whole batch.
        inputs: this rank's shard of the batch.
        group: the ranks that share the batch.
        batch_size: B.
    """
    with SyncBatchNorm(group):
        own = network(inputs)
    whole: Tensor = _AllGather.apply(own, group, batch_size)
    return whole


class _AllGather(torch.autograd.Function):
    """all_gather whose backward keeps this rank's shard of the gradient.

    Every rank computes the whole loss, so the backward pass sends nothing: the sum over the ranks
    of their shards' gradients is the gradient of the loss.
    """

    @staticmethod
    def forward(ctx: Any, own: Tensor, group: WorkerGroup, batch_size: int) -> Tensor:
        ctx.shard = group.shard(batch_size)
        return group.all_gather(own, batch_size=batch_size)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient[ctx.shard], None, None


def sync_gradients(
    group: WorkerGroup, *, network: Iterable[nn.Parameter], loss: Iterable[nn.Parameter]
) -> None:
    """Gives every rank the gradients of the whole batch.

    Args:
        group: the ranks that share the batch.
        network: parameters with the gradient of each rank's own shard; these are summed.
        loss: parameters whose whole gradient every rank has. Rank 0's is broadcast, since GPUs
            may round the same sum differently, and proxies must not drift apart.
    """
    summed = [p.grad for p in network if p.grad is not None]
    _as_one_tensor(summed, group.all_reduce)
    copied = [p.grad for p in loss if p.grad is not None]
    values = [g._values() if g.is_sparse else g for g in copied]
    _as_one_tensor(values, group.broadcast)


def broadcast_state(group: WorkerGroup, tensors: Iterable[Tensor]) -> None:
    """Gives every rank the weights of rank 0, so that all start from the same bits."""
    with torch.no_grad():
        for tensor in tensors:
            whole = tensor.detach().contiguous()
            group.broadcast(whole)
            tensor.copy_(whole)


def seed_rank(group: WorkerGroup, seed: int, *, epoch: int, step: int) -> None:
    """Seeds torch's global generator for this rank's shard, as dropout needs it."""
    torch.manual_seed(stream_seed(seed, f"network, worker {group.rank}", epoch=epoch, step=step))


def seed_all_ranks(seed: int, *, epoch: int, step: int) -> None:
    """Seeds torch's global generator alike on all ranks, so that a loss draws the same on each."""
    torch.manual_seed(stream_seed(seed, "loss of a team", epoch=epoch, step=step))


def _as_one_tensor(tensors: list[Tensor], collective: Callable[[Tensor], None]) -> None:
    """Runs one collective over all tensors, since each call waits for all ranks."""
    if len(tensors) == 1 and tensors[0].is_contiguous():
        collective(tensors[0])
        return
    if not tensors:
        return
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    collective(flat)
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    for tensor, values in zip(tensors, parts, strict=True):
        tensor.copy_(values.view(tensor.shape))
