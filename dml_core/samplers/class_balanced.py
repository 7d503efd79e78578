"""Batches of a fixed number of classes with a fixed number of images each."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from dml_core.config.training import ClassBalancedSamplerConfig
from dml_core.samplers.batch import Batch, BatchSampler
from dml_core.seeding import numpy_stream


@dataclass(frozen=True)
class BatchShape:
    """How many classes, and how many images of each."""

    classes_per_batch: int
    samples_per_class: int

    @property
    def size(self) -> int:
        """Images in a batch."""
        return self.classes_per_batch * self.samples_per_class


def compute_batch_shape(config: ClassBalancedSamplerConfig, *, num_classes: int) -> BatchShape:
    """Returns the shape of a batch drawn from `num_classes` training classes.

    Raises:
        ValueError: when such a batch cannot be made, with the numbers and what to change.
    """
    if config.class_ratio is not None:
        knob, classes = "class_ratio", max(2, round(config.class_ratio * num_classes))
    elif config.classes_per_batch is not None:
        knob, classes = "classes_per_batch", config.classes_per_batch
    else:
        assert config.samples_per_class is not None
        knob, classes = "samples_per_class", config.batch_size // config.samples_per_class
    found = f"sampler.{knob}={getattr(config, knob)} asks for {classes} classes a batch"
    if classes > num_classes:
        raise ValueError(
            f"{found}, but a class stands in a batch once and there are {num_classes} training "
            f"classes. Lower sampler.batch_size or change sampler.{knob}."
        )
    samples = config.samples_per_class or config.batch_size // classes
    if samples < 1:
        raise ValueError(
            f"{found}, more than sampler.batch_size={config.batch_size} has images for. "
            f"Raise sampler.batch_size or lower sampler.{knob}."
        )
    return BatchShape(classes_per_batch=classes, samples_per_class=samples)


@dataclass
class _Deck:
    """Deals its cards in random order and shuffles anew when they run out.

    Dealing evens out chance: over an epoch no class, and no image of a class, is dealt twice
    more often than another.
    """

    cards: np.ndarray
    stream: np.random.Generator
    left: list[int] = field(default_factory=list)

    def deal(self, count: int) -> list[int]:
        """Returns `count` different cards; with repeats only where there are fewer cards."""
        hand: list[int] = []
        repeats, count = divmod(count, len(self.cards))
        # A class with too few images gives all of them, as often as fit.
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
        """Shuffles all cards; those in the present hand go to the end, out of its reach."""
        order = self.stream.permutation(self.cards).tolist()
        held = set(dealt)
        return [c for c in order if c not in held] + [c for c in order if c in held]


class ClassBalancedSampler(BatchSampler):
    """classes_per_batch x samples_per_class; images of a class stand together."""

    def __init__(
        self, *, labels: np.ndarray, config: ClassBalancedSamplerConfig, seed: int
    ) -> None:
        super().__init__(seed=seed)
        classes = np.unique(labels)
        self.shape = compute_batch_shape(config, num_classes=len(classes))
        self.num_images = len(labels)
        self.members = [np.flatnonzero(labels == label) for label in classes]

    def __len__(self) -> int:
        return max(1, self.num_images // self.shape.size)

    def _draw_epoch(self, epoch: int) -> Iterator[Batch]:
        stream = numpy_stream(self.seed, "batches", epoch=epoch)
        classes = _Deck(np.arange(len(self.members)), stream)
        images = [_Deck(members, stream) for members in self.members]
        for _ in range(len(self)):
            chosen = classes.deal(self.shape.classes_per_batch)
            hands = [images[label].deal(self.shape.samples_per_class) for label in chosen]
            yield Batch(np.array(hands, dtype=np.int64).ravel())
