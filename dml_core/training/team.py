"""The processes that train one trial together, as one of them sees them."""

# B = batch, D = embedding dim

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

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
