"""Class-balanced batches: a fixed number of classes with a fixed number of images each."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dml_core.config.training import ClassBalancedSamplerConfig
from dml_core.samplers.batch import Batch, BatchSampler
from dml_core.seeding import numpy_stream


@dataclass(frozen=True)
class BatchShape:
    """Number of classes in a batch, and of images of each class."""

    classes_per_batch: int
    samples_per_class: int

    @property
    def size(self) -> int:
        """Number of images in a batch."""
        return self.classes_per_batch * self.samples_per_class


def compute_batch_shape(config: ClassBalancedSamplerConfig, *, num_classes: int) -> BatchShape:
    """Returns the shape of a batch drawn from `num_classes` training classes.

    Raises:
        ValueError: if no such batch is possible, with the numbers and the key to change.
    """
    if config.class_ratio is not None:
        key, classes = "class_ratio", max(2, round(config.class_ratio * num_classes))
    elif config.classes_per_batch is not None:
        key, classes = "classes_per_batch", config.classes_per_batch
    else:
        assert config.samples_per_class is not None
        key, classes = "samples_per_class", config.batch_size // config.samples_per_class
    found = f"sampler.{key}={getattr(config, key)} requests {classes} classes per batch"
    if classes > num_classes:
        raise ValueError(
            f"{found}, but there are only {num_classes} training classes and a batch holds each "
            f"at most once. Lower sampler.batch_size or change sampler.{key}."
        )
    samples = config.samples_per_class or config.batch_size // classes
    if samples < 1:
        raise ValueError(
            f"{found}, more than the images of sampler.batch_size={config.batch_size}. "
            f"Raise sampler.batch_size or lower sampler.{key}."
        )
    return BatchShape(classes_per_batch=classes, samples_per_class=samples)


@dataclass
class _Deck:
    """Deals its cards in random order and reshuffles when they run out.

    Each card is dealt equally often, up to the last incomplete pass.
    """

    cards: np.ndarray
    stream: np.random.Generator
    left: list[int] = field(default_factory=list)

    def deal(self, count: int) -> list[int]:
        """Returns `count` distinct cards, or repeats if there are fewer cards."""
        hand: list[int] = []
        repeats, count = divmod(count, len(self.cards))
        # A class with too few images contributes all of them, repeated as needed.
        hand.extend(int(card) for _ in range(repeats) for card in self.cards)
        dealt: list[int] = []
        while len(dealt) < count:
            if not self.left:
                self.left = self._shuffle_without(dealt)
            take = count - len(dealt)
            dealt.extend(self.left[:take])
            self.left = self.left[take:]
        return hand + dealt

    def _shuffle_without(self, dealt: list[int]) -> list[int]:
        """Shuffles all cards and puts those of the current hand last."""
        order = self.stream.permutation(self.cards).tolist()
        held = set(dealt)
        return [c for c in order if c not in held] + [c for c in order if c in held]


class ClassBalancedSampler(BatchSampler):
    """classes_per_batch x samples_per_class images; images of a class are adjacent."""

    config_class = ClassBalancedSamplerConfig
    config: ClassBalancedSamplerConfig

    def __init__(self, labels: npt.ArrayLike, *, seed: int = 0, **arguments: Any) -> None:
        super().__init__(seed=seed, **arguments)
        labels = np.asarray(labels)
        if labels.ndim != 1:
            raise ValueError(
                "labels of ClassBalancedSampler must be (N,), the class of each image. "
                f"Got {labels.shape}."
            )
        classes = np.unique(labels)
        self.shape = compute_batch_shape(self.config, num_classes=len(classes))
        self.num_images = len(labels)
        self.members = [np.flatnonzero(labels == label) for label in classes]

    def __len__(self) -> int:
        return max(1, self.num_images // self.shape.size)

    def epoch_batches(self, epoch: int) -> Iterator[Batch]:
        """Yields the batches of an epoch."""
        stream = numpy_stream(self.seed, "batches", epoch=epoch)
        classes = _Deck(np.arange(len(self.members)), stream)
        images = [_Deck(members, stream) for members in self.members]
        for _ in range(len(self)):
            chosen = classes.deal(self.shape.classes_per_batch)
            hands = [images[label].deal(self.shape.samples_per_class) for label in chosen]
            yield Batch(np.array(hands, dtype=np.int64).ravel())
