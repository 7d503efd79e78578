"""Distributed training of one trial: the ranks, their collectives, and what a step shares."""

# B = batch, D = embedding dim
# B = batch, C = channels

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

_SECONDS_BETWEEN_LOOKS = 0.02


class TeamBroken(ValueError):
    """A worker of the trial is gone; the trial can go on from its checkpoint with a new team."""


def _ignore() -> None:
    """Sees that all is well."""


class Team:
    """One member of the processes that train a trial together.

    All members hold the same weights and draw the same batches. Each runs the network on its part
    of a batch; then all have the embeddings of the whole batch and compute the same loss. The
    member of rank 0 leads: it alone validates, writes and reports, and tells whether to go on.
    """

    def __init__(
        self, store: "Store", *, rank: int, size: int, check_others: Callable[[], None] = _ignore
    ) -> None:
        """Prepares a member; `torch.distributed` has its process group already.

        Args:
            store: what members leave messages for each other in.
            rank: which member this is, from 0.
            size: how many there are.
            check_others: raises TeamBroken where another member is known to be gone.
        """
        self.rank = rank
        self.size = size
        self._store = store
        self._check_others = check_others

    @property
    def leads(self) -> bool:
        """Whether this member is the one that validates, writes and reports."""
        return self.rank == 0

    def sizes_of_parts(self, count: int) -> list[int]:
        """Returns how many of a batch's images each member has; they differ by one at most.

        Raises:
            ValueError: when there are more members than images.
        """
        if count < self.size:
            raise ValueError(
                f"trial.workers must be at most the images of a batch, so that each has one. "
                f"Got {self.size} workers and a batch of {count} images. "
                "Lower trial.workers or raise sampler.batch_size."
            )
        return [count // self.size + (rank < count % self.size) for rank in range(self.size)]

    def part_of(self, count: int) -> slice:
        """Returns which of a batch's images are this member's."""
        sizes = self.sizes_of_parts(count)
        start = sum(sizes[: self.rank])
        return slice(start, start + sizes[self.rank])

    def gather(self, part: Tensor, *, count: int) -> Tensor:
        """Returns the rows of all members in the batch's order, without a gradient.

        Args:
            part: this member's rows, as many as `part_of(count)` has.
            count: rows of the whole batch.
        """
        sizes = self.sizes_of_parts(count)
        # Members send tensors of one shape, so that smaller parts are filled up.
        sent = part.new_zeros(max(sizes), *part.shape[1:])
        sent[: len(part)] = part
        received = [torch.empty_like(sent) for _ in sizes]
        with _noticing_loss():
            torch.distributed.all_gather(received, sent)
        return torch.cat([rows[:size] for rows, size in zip(received, sizes, strict=True)])

    def add_up(self, values: Tensor) -> None:
        """Replaces a contiguous tensor by its sum over all members."""
        with _noticing_loss():
            torch.distributed.all_reduce(values)

    def copy_from_leader(self, values: Tensor) -> None:
        """Replaces a contiguous tensor by the leader's."""
        with _noticing_loss():
            torch.distributed.broadcast(values, src=0)

    def tell(self, what: str, value: int) -> None:
        """Leaves a number under a name that was not used before."""
        with _noticing_loss():
            self._store.set(what, str(int(value)))

    def ask(self, what: str) -> int:
        """Returns the number under a name, once somebody has told it.

        Unlike the collective calls it waits for as long as the others live: the leader may have
        to wait for its driver, or for a large dataset.
        """
        with _noticing_loss():
            while not self._store.check([what]):
                self._check_others()
                time.sleep(_SECONDS_BETWEEN_LOOKS)
            return int(self._store.get(what))

    def meet(self, where: str) -> None:
        """Waits until all members are there."""
        self.tell(f"{where} {self.rank}", 1)
        for rank in range(self.size):
            self.ask(f"{where} {rank}")

    def close(self) -> None:
        """Leaves the team; members that still wait for this one then see that it is gone."""
        if torch.distributed.is_initialized():
            # A group that has lost a member may refuse, and is left all the same.
            with contextlib.suppress(RuntimeError):
                torch.distributed.destroy_process_group()


@contextmanager
def _noticing_loss() -> Iterator[None]:
    """Tells a failed talk with another member from errors of the training."""
    try:
        yield
    except RuntimeError as error:
        first = str(error).strip().splitlines()[0][:300] if str(error).strip() else "no answer"
        raise TeamBroken(
            f"a worker of the trial is gone ({first}). The same command goes on from the last "
            "checkpoint."
        ) from error


class TeamBatchNorm(TorchFunctionMode):
    """Within it, batch norms that learn their statistics learn them from the whole batch."""

    def __init__(self, team: Team) -> None:
        super().__init__()
        self._team = team

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Calls a function of torch, or what stands for it here."""
        if func is functional.batch_norm and (kwargs or {}).get("training"):
            return batch_norm_of_team(self._team, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


class Statistics(NamedTuple):
    """Of the whole batch, for each channel."""

    num_values: Tensor
    """(C,) values of a channel."""
    mean: Tensor
    """(C,)."""
    variance: Tensor
    """(C,) with the count as divisor."""


def batch_norm_of_team(
    team: Team,
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
    """Returns what torch.nn.functional.batch_norm would of the whole batch: this member's part.

    Args:
        team: the workers that share the batch.
        values: (B, C, ...) of this member.
        running_mean: (C,) moved towards the batch's mean.
        running_var: (C,) moved towards the batch's variance, with the count less one as divisor.
        weight: (C,) factor.
        bias: (C,) summand.
        training: always true here.
        momentum: how far the running statistics move.
        eps: added to the variance.
    """
    exact = values.to(torch.promote_types(values.dtype, torch.float32))
    found = _measure(team, exact.detach())
    with torch.no_grad():
        if running_mean is not None and running_var is not None:
            unbiased = found.variance * (found.num_values / (found.num_values - 1).clamp(min=1))
            running_mean.lerp_(found.mean.to(running_mean.dtype), momentum)
            running_var.lerp_(unbiased.to(running_var.dtype), momentum)
    inverse = (found.variance + eps).rsqrt()
    normal: Tensor = _Normalize.apply(exact, found.mean, inverse, found.num_values, team)
    shape = _shape(values)
    if weight is not None:
        normal = normal * weight.view(shape)
    if bias is not None:
        normal = normal + bias.view(shape)
    return normal.to(values.dtype)


def _measure(team: Team, values: Tensor) -> Statistics:
    """Returns the statistics of the whole batch, from those of its parts."""
    axes = _axes(values)
    variance, mean = torch.var_mean(values, axes, correction=0)
    count = torch.full_like(mean, values.numel() // values.shape[1])
    # (members, 3, C) in double, in which the parts' rounding is all that is left.
    parts = team.gather(torch.stack([count, mean, variance]).double().unsqueeze(0), count=team.size)
    counts, means, variances = parts.unbind(1)
    total = counts.sum(0)
    shares = counts / total
    overall = (shares * means).sum(0)
    spread = (shares * (variances + (means - overall).square())).sum(0)
    return Statistics(*(each.to(mean.dtype) for each in (total, overall, spread)))


class _Normalize(torch.autograd.Function):
    """(x - mean) / deviation, where mean and deviation depend on the x of all members."""

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, mean: Tensor, inverse: Tensor, count: Tensor, team: Team
    ) -> Tensor:
        shape = _shape(values)
        normal = (values - mean.view(shape)) * inverse.view(shape)
        ctx.save_for_backward(normal, inverse)
        ctx.count, ctx.team = count, team
        return normal

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        normal, inverse = ctx.saved_tensors
        axes, shape = _axes(normal), _shape(normal)
        sums = torch.stack([gradient.sum(axes), (gradient * normal).sum(axes)])
        ctx.team.add_up(sums)
        mean, along = (sums / ctx.count).unbind(0)
        moved = gradient - mean.view(shape) - normal * along.view(shape)
        return moved * inverse.view(shape), None, None, None, None


def _axes(values: Tensor) -> list[int]:
    return [axis for axis in range(values.ndim) if axis != 1]


def _shape(values: Tensor) -> list[int]:
    return [1, values.shape[1], *[1] * (values.ndim - 2)]


def embed_batch(
    network: Callable[[Tensor], Tensor], inputs: Tensor, *, team: Team, count: int
) -> Tensor:
    """Returns the (B, D) embeddings of the whole batch, with gradients for this member's part.

    Args:
        network: from inputs to embeddings; its batch norms see the whole batch.
        inputs: this member's part of the batch.
        team: the workers that share the batch.
        count: B.
    """
    with TeamBatchNorm(team):
        part = network(inputs)
    whole: Tensor = _Gather.apply(part, team, count)
    return whole


class _Gather(torch.autograd.Function):
    """The parts of all members as one; the gradient of a part is that part of the gradient.

    Every member computes the whole loss, so that nothing has to be sent back: added up over the
    members, the gradients of their parts are the gradient of the loss.
    """

    @staticmethod
    def forward(ctx: Any, part: Tensor, team: Team, count: int) -> Tensor:
        ctx.part = team.part_of(count)
        return team.gather(part, count=count)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient[ctx.part], None, None


def share_gradients(
    team: Team, *, network: Iterable[nn.Parameter], loss: Iterable[nn.Parameter]
) -> None:
    """Gives every member the gradients of the whole batch.

    Args:
        team: the workers that share the batch.
        network: parameters whose gradients are of each member's part alone, and are added up.
        loss: parameters whose gradients every member has in full. The leader's stand for all,
            since a GPU may round the same sum in two ways, and proxies must not drift apart.
    """
    added = [p.grad for p in network if p.grad is not None]
    _in_one_piece(added, team.add_up)
    copied = [p.grad for p in loss if p.grad is not None]
    values = [g._values() if g.is_sparse else g for g in copied]
    _in_one_piece(values, team.copy_from_leader)


def share_state(team: Team, tensors: Iterable[Tensor]) -> None:
    """Gives every member the leader's weights, so that all start from the same bits."""
    with torch.no_grad():
        for tensor in tensors:
            whole = tensor.detach().contiguous()
            team.copy_from_leader(whole)
            tensor.copy_(whole)


def seed_part(team: Team, seed: int, *, epoch: int, step: int) -> None:
    """Lets what draws from torch's global stream, such as dropout, draw for this part alone."""
    torch.manual_seed(stream_seed(seed, f"network, worker {team.rank}", epoch=epoch, step=step))


def seed_whole(seed: int, *, epoch: int, step: int) -> None:
    """Lets a loss that draws from torch's global stream draw the same in every member."""
    torch.manual_seed(stream_seed(seed, "loss of a team", epoch=epoch, step=step))


def _in_one_piece(tensors: list[Tensor], send: Callable[[Tensor], None]) -> None:
    """Sends tensors as one, since each sending has to wait for the others."""
    if len(tensors) == 1 and tensors[0].is_contiguous():
        send(tensors[0])
        return
    if not tensors:
        return
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    send(flat)
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    for tensor, values in zip(tensors, parts, strict=True):
        tensor.copy_(values.view(tensor.shape))
