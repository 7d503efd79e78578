"""What a step does besides, where several workers share its batch."""

# B = batch, D = embedding dim

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from dml_core.seeding import stream_seed
from dml_core.training.team import Team
from dml_core.training.team_batch_norm import TeamBatchNorm


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
