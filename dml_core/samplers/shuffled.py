"""Every image once an epoch, in random order."""

from collections.abc import Iterator

from dml_core.samplers.batch import Batch, BatchSampler
from dml_core.seeding import numpy_stream


class ShuffledSampler(BatchSampler):
    """Cuts a random order of all images into batches; the last, shorter one is dropped."""

    def __init__(self, *, num_images: int, batch_size: int, seed: int) -> None:
        super().__init__(seed=seed)
        if num_images < batch_size:
            raise ValueError(
                f"sampler.batch_size must be at most the number of training images. "
                f"Got {batch_size} and {num_images} images. Lower sampler.batch_size."
            )
        self.num_images = num_images
        self.batch_size = batch_size

    def __len__(self) -> int:
        return self.num_images // self.batch_size

    def _draw_epoch(self, epoch: int) -> Iterator[Batch]:
        order = numpy_stream(self.seed, "batches", epoch=epoch).permutation(self.num_images)
        for number in range(len(self)):
            yield Batch(order[number * self.batch_size : (number + 1) * self.batch_size])
