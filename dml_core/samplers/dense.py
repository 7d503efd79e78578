"""Dense sampling: groups of an anchor, its nearest by continuous label, and a uniform rest."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from dml_core.config.training import DenseSamplerConfig
from dml_core.samplers.batch import Batch, BatchSampler
from dml_core.seeding import numpy_stream


class DenseSampler(BatchSampler):
    """Batches of `anchors_per_batch` groups: each is the anchor, its nearest, then the others."""

    config_class = DenseSamplerConfig
    config: DenseSamplerConfig

    def __init__(self, continuous: npt.ArrayLike, *, seed: int = 0, **arguments: Any) -> None:
        super().__init__(seed=seed, **arguments)
        self.continuous = np.asarray(continuous)
        if self.continuous.ndim != 2:
            raise ValueError(
                "continuous labels of DenseSampler must be (N, L), a row for each image. "
                f"Got {self.continuous.shape}."
            )
        self._check_batch_fits(len(self.continuous))
        self.group_size = self.config.batch_size // self.config.anchors_per_batch

    def __len__(self) -> int:
        images_per_batch = (
            self.config.anchors_per_batch
            if self.config.epoch == "anchors"
            else self.config.batch_size
        )
        return len(self.continuous) // images_per_batch

    def epoch_batches(self, epoch: int) -> Iterator[Batch]:
        """Yields the batches of an epoch."""
        stream = numpy_stream(self.seed, "batches", epoch=epoch)
        order = stream.permutation(len(self.continuous))
        count = self.config.anchors_per_batch
        positions = np.arange(count) * self.group_size
        for number in range(len(self)):
            anchors = order[number * count : (number + 1) * count]
            yield Batch(self._draw_groups(anchors, stream), anchors=positions)

    def _draw_groups(self, anchors: np.ndarray, stream: np.random.Generator) -> np.ndarray:
        taken = np.zeros(len(self.continuous), dtype=bool)
        groups = [np.append(anchor, self._nearest(int(anchor))) for anchor in anchors]
        taken[np.concatenate(groups)] = True
        # The uniform rest repeats no image of the batch, to avoid more pairs at distance zero.
        free = stream.permutation(np.flatnonzero(~taken))
        count = self.group_size - self.config.nearest - 1
        if len(free) < count * len(groups):
            free = stream.permutation(len(self.continuous))
        rest = free[: count * len(groups)].reshape(len(groups), count)
        return np.concatenate([np.append(g, r) for g, r in zip(groups, rest, strict=True)])

    def _nearest(self, anchor: int) -> np.ndarray:
        """Returns the nearest images by label without the anchor, nearest first."""
        distances = ((self.continuous - self.continuous[anchor]) ** 2).sum(axis=1)
        distances[anchor] = np.inf
        count = self.config.nearest
        nearest = np.argpartition(distances, max(count - 1, 0))[:count]
        return nearest[np.argsort(distances[nearest], kind="stable")]
