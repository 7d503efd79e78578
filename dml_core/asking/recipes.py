"""How images of a kind are trained: the table from which `dml ask` chooses, with its reasons.

Every number here was measured on a CPU (docs/findings.md and docs/ask.md); a study that was written
from a recipe can be edited like any other.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Question = Literal["loss", "dim", "batch", "samples"]
Layer = Mapping[str, Any]
"""Values by dotted key."""

TINY_PX = 48
"""Images with a shorter side up to this are drawings or icons rather than photographs."""
_EVALUATION: Layer = {
    # k-means over the test classes would cost more than the training of a small network.
    "evaluation.clustering": False,
}


@dataclass(frozen=True)
class Length:
    """How long a training is."""

    least: int
    """With less, the order of the arms is an artefact of a training cut short."""
    enough: int
    most: int


@dataclass(frozen=True)
class Recipe:
    """The values of a training, and how long it must be."""

    name: str
    why: str
    """One sentence for the study's file."""
    fixed: Layer
    """Values of every arm."""
    losses: Mapping[str, Layer]
    """The arms of the question `loss`, the most promising first."""
    batch_size: int
    samples_per_class: int
    rates: tuple[float, ...]
    """Learning rates that are tried for each arm; the range is extended at its ends."""
    single_rate: float
    """The learning rate where there is no time to try several."""
    epochs: "Length"
    steps: "Length"
    """Of the optimiser; a few images make short epochs, so both must be reached."""
    lengths: tuple[int, ...] = (64, 128, 512)
    """Embedding lengths of the question `dim`."""

    def count_epochs(self, steps_per_epoch: int) -> Length:
        """Returns the epochs that reach both the epochs and the steps of the recipe."""
        least, enough, most = (
            max(epochs, -(-steps // max(1, steps_per_epoch)))
            for epochs, steps in zip(
                (self.epochs.least, self.epochs.enough, self.epochs.most),
                (self.steps.least, self.steps.enough, self.steps.most),
                strict=True,
            )
        )
        return Length(least, enough, most)

    @property
    def questions(self) -> dict[Question, str]:
        """The questions that the recipe can ask, in words."""
        asked: dict[Question, str] = {"loss": "Which loss finds the right class most often?"}
        if "norm_softmax" in self.losses:
            asked["dim"] = "How long must an embedding be?"
            asked["batch"] = "Does a larger batch help?"
            asked["samples"] = "How many images of a class should a batch hold?"
        return asked


PHOTOS = Recipe(
    name="photos",
    why="photographs are embedded by a network that was trained on ImageNet, of which the later "
    "blocks are trained further; the first ones are computed once and kept",
    fixed={
        # The side that was measured; a larger one costs in proportion to its square.
        "data.image_size_px": 112,
        "data.resize": "shorter",
        "data.color": "rgb",
        "augmentation.input_size_px": 0,
        "augmentation.crop": "random_resized",
        "augmentation.min_area": 0.3,
        "augmentation.flip": "image",
        # Real ImageNet weights inside a package: nothing is downloaded.
        "model.backbone": "timm:tf_efficientnet_lite0",
        "model.weights": "package:efficientnet_lite0",
        "model.pooling": "avg",
        "model.embedding_dim": 512,
        # A head alone overfits the training classes, and all blocks cost three times as much.
        "trunk.train": "from:blocks.3",
        "trunk.cache_views": 4,
        "optimizer.name": "adamw",
        "optimizer.head_factor": 10,
        "training.freeze_batch_norm": True,
        "schedule.name": "cosine",
        **_EVALUATION,
    },
    losses={
        # NormSoftmax collapses with faster proxies, Proxy-Anchor needs them.
        "norm_softmax": {"loss.name": "norm_softmax", "optimizer.proxy_factor": 10},
        "proxy_anchor": {"loss.name": "proxy_anchor", "optimizer.proxy_factor": 100},
        "multi_similarity": {"loss.name": "multi_similarity"},
        "triplet_hard": {"loss.name": "triplet", "loss.mining": "hard"},
    },
    batch_size=64,
    samples_per_class=4,
    rates=(0.0001, 0.0003),
    single_rate=0.0002,
    epochs=Length(3, 8, 16),
    steps=Length(60, 200, 600),
)

DRAWINGS = Recipe(
    name="small images",
    why="images this small hold no detail that a network of photographs would know, so a small "
    "convolutional network is trained from nothing",
    fixed={
        "data.resize": "square",
        "augmentation.input_size_px": 0,
        "augmentation.crop": "shift",
        "augmentation.shift_px": 2,
        # Letters and signs have a right way round.
        "augmentation.flip": "none",
        "model.backbone": "convnet",
        "model.weights": "none",
        "model.width": 16,
        "model.pooling": "avg+max",
        "model.embedding_dim": 128,
        "trunk.train": "all",
        "optimizer.name": "adamw",
        "optimizer.head_factor": 1,
        "schedule.name": "cosine",
        **_EVALUATION,
    },
    losses={
        "multi_similarity": {"loss.name": "multi_similarity"},
        "proxy_anchor": {"loss.name": "proxy_anchor", "optimizer.proxy_factor": 10},
        "norm_softmax": {"loss.name": "norm_softmax", "optimizer.proxy_factor": 10},
        "triplet": {"loss.name": "triplet"},
    },
    batch_size=48,
    samples_per_class=4,
    rates=(0.001, 0.003),
    single_rate=0.003,
    epochs=Length(6, 14, 30),
    steps=Length(120, 600, 1500),
    lengths=(16, 64, 128),
)

LABEL_LOSSES: Mapping[str, Layer] = {
    # Every image of a batch is an anchor: one anchor, as in the paper, is too few for few epochs.
    "log_ratio": {"loss.name": "log_ratio", "loss.anchors": "every"},
    "dense_triplet": {"loss.name": "dense_triplet", "loss.anchors": "every"},
}
"""The arms where the labels are numbers instead of classes."""


LABEL_GROUP = 12
"""Images around an anchor: the nearest by their labels, and others."""


def choose_recipe(*, median_px: int) -> Recipe:
    """Returns the recipe for images with this median of the shorter sides."""
    return DRAWINGS if median_px <= TINY_PX else PHOTOS


def choose_size_px(recipe: Recipe, *, median_px: int) -> int:
    """Returns the side of the packed images: the recipe's, or that of small images."""
    known = recipe.fixed.get("data.image_size_px")
    return int(known) if known else min(max(median_px, 16), TINY_PX)


def make_label_batch(recipe: Recipe, *, num_images: int) -> dict[str, Any]:
    """Returns the keys of a batch around anchors and of its scores, for labels that are numbers.

    A training set with few images fills a smaller batch, around fewer anchors.
    """
    size = min(recipe.batch_size, num_images)
    anchors = min(4, max(1, size // LABEL_GROUP))
    return {
        "sampler.name": "dense",
        "sampler.batch_size": size - size % anchors,
        "sampler.anchors_per_batch": anchors,
        "sampler.nearest": min(5, max(1, size // anchors - 2)),
        "evaluation.label_at": [1, 10],
        "evaluation.ndcg_at": [10, 50],
    }


def make_batch(recipe: Recipe, *, num_classes: int) -> dict[str, Any]:
    """Returns the keys of a batch that a training set with so many classes can fill.

    With few classes, a batch holds all of them, with more images each.
    """
    classes = min(recipe.batch_size // recipe.samples_per_class, num_classes)
    samples = recipe.batch_size // classes
    return {
        "sampler.name": "class_balanced",
        "sampler.batch_size": classes * samples,
        "sampler.class_ratio": None,
        "sampler.classes_per_batch": None,
        "sampler.samples_per_class": samples,
    }


def list_arms(
    recipe: Recipe, question: Question, *, num_classes: int, is_continuous: bool = False
) -> dict[str, dict[str, Any]]:
    """Returns the arms of a question by name, the most promising first.

    Args:
        recipe: how the images are trained.
        question: what differs between the arms.
        num_classes: classes of the training set, which limit a batch.
        is_continuous: whether the labels are numbers; then the losses for them are compared.

    Raises:
        ValueError: for a question that these labels or so few classes have no answer to.
    """
    if is_continuous:
        if question != "loss":
            raise ValueError(
                f"--question must be loss for labels that are numbers. Got {question!r}."
            )
        return {name: dict(layer) for name, layer in LABEL_LOSSES.items()}
    if question == "loss":
        return {name: dict(layer) for name, layer in recipe.losses.items()}
    first = dict(recipe.losses["norm_softmax"])
    if question == "dim":
        return {
            f"length-{length}": {**first, "model.embedding_dim": length}
            for length in recipe.lengths
        }
    batch = make_batch(recipe, num_classes=num_classes)
    size, samples = batch["sampler.batch_size"], batch["sampler.samples_per_class"]
    arms = {
        f"batch-{each}": {**first, "sampler.batch_size": each}
        for each in (size // 2, size, 2 * size)
        if 2 <= each // samples <= num_classes
    }
    if question == "samples":
        arms = {
            f"samples-{each}": {**first, "sampler.samples_per_class": each}
            for each in (2, 4, 8)
            if 2 <= size // each <= num_classes
        }
    if len(arms) < 2:
        raise ValueError(
            f"--question {question} needs more classes: of {num_classes} training classes only "
            f"{'one kind' if arms else 'no kind'} of batch can be filled. Choose loss or dim."
        )
    return arms
