"""The configuration of one trial."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dml_core.config.data import AugmentationConfig, DataConfig, GlyphsData
from dml_core.config.losses import CONTINUOUS_LOSSES, LossConfig, ProxyAnchorConfig
from dml_core.config.section import Section
from dml_core.config.training import (
    AdamWConfig,
    ClassBalancedSamplerConfig,
    CosineScheduleConfig,
    OptimizerConfig,
    SamplerConfig,
    ScheduleConfig,
    TeamConfig,
    TrainingConfig,
)


class ModelConfig(Section):
    """Trunk, pooling, layer norm, projection, normalisation."""

    backbone: str = Field(default="convnet", pattern=r"^(convnet|(torchvision|timm):[\w.\-]+)$")
    """`convnet` (small, for CPU), `torchvision:<name>` or `timm:<name>`."""
    weights: str = "none"
    """none, imagenet (downloaded by the library), package:efficientnet_lite0, or a file's path."""
    width: int = Field(default=32, ge=4, le=1024)
    """convnet: channels of its first stage; the later ones have two and four times as many."""
    pixel_scaling: Literal["auto", "imagenet", "half", "caffe", "unit"] = "auto"
    """Input pixels: imagenet (mean and std), half (to -1..1), caffe (BGR 0..255 less the mean),
    unit (0..1); auto takes what the weights were made with."""
    pooling: Literal["avg", "max", "avg+max"] = "avg+max"
    """How a feature map becomes a vector; avg+max is their sum."""
    layer_norm: bool = False
    """Affine-free layer norm on the pooled feature, before the projection."""
    embedding_dim: int = Field(default=128, ge=2, le=65536)
    """Length of an embedding."""
    projection: Literal["linear", "linear_no_bias", "none"] = "linear"
    """The layer from pooled feature to embedding; none needs a trunk of embedding_dim channels."""
    normalize: Literal["auto", "yes", "no"] = "auto"
    """L2-normalise the embedding; auto is yes, but for the losses that need raw embeddings."""


class TrunkConfig(Section):
    """Which part of the trunk learns."""

    train: str = Field(default="all", pattern=r"^(all|none|from:[\w.]+)$")
    """all of it, none (only the head), or from:<stage> on (that stage and the later ones)."""
    cache: bool = True
    """Compute the frozen part once for each image and keep it on disk, shared by all trials."""
    cache_views: int = Field(default=1, ge=1, le=64)
    """Versions of each training image in the cache: the plain one, the others augmented."""

    @property
    def keeps_activations(self) -> bool:
        """Whether a trial reads what a frozen part made of the images, and not the images."""
        return self.cache and self.train != "all"


Rank = Annotated[int, Field(ge=1, le=1_000_000)]
Share = Annotated[float, Field(gt=0, lt=1)]
SearchDevice = Literal["cpu", "gpu"]


class EvaluationConfig(Section):
    """Retrieval, clustering, continuous labels, occlusion."""

    recall_at: tuple[Rank, ...] = Field(default=(1, 2, 4, 8), min_length=1)
    """The K of R@K."""
    clustering: bool = True
    """Compute NMI and pair F1 over k-means with as many clusters as classes."""
    kmeans_iterations: int = Field(default=50, ge=1, le=10_000)
    """Iterations of each k-means run."""
    kmeans_restarts: int = Field(default=1, ge=1, le=100)
    """k-means runs, of which the best by its own objective counts."""
    binary: bool = False
    """Also evaluate the embeddings cut to one bit a dimension (value > 0), by Hamming distance."""
    label_at: tuple[Rank, ...] = Field(default=(1, 5, 10), min_length=1)
    """The K of the mean label distance, where there are continuous labels."""
    ndcg_at: tuple[Rank, ...] = Field(default=(10, 50, 100), min_length=1)
    """The K of nDCG, where there are continuous labels; the first is `ndcg` for selection."""
    occlusion: tuple[Share, ...] = ()
    """Sides of the black square laid over each image, as shares of its side; none by default."""
    synthetic_points: int = Field(default=0, ge=0, le=256)
    """Points between the two images of each pair of a class that are searched as queries; 0 leaves
    `synthetic_recall_at_K` out."""
    class_distances: int = Field(default=0, ge=0, le=1000)
    """Validation classes, from the first, whose smallest distances to each other are recorded
    after each epoch; 0 records none."""
    block_size: int = Field(default=1024, ge=1, le=1_000_000)
    """Queries searched at once; bounds the memory, never changes a number."""
    compare_once_from: int = Field(default=16_384, ge=0)
    """Images from which on each pair is compared once for both of it, where images are searched
    among themselves by cosine on the CPU: half the products. 0 never does. Numbers may then differ
    where two distances differ by rounding only."""
    search_device: SearchDevice = "cpu"
    """Where neighbours are searched and clusters found; gpu needs a faiss that was built for it.
    Numbers may then differ where two distances differ by rounding only."""
    batch_size: int = Field(default=64, ge=1, le=100_000)
    """Images embedded at once; on a CPU small batches stay in the cache and are faster."""


DEFAULT_SAMPLER = ClassBalancedSamplerConfig(class_ratio=0.2)


class TrialConfig(Section):
    """One trial: what it trains on, with what, how, and how it is judged."""

    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of everything random in the trial: initial weights, batches, augmentation."""
    data: DataConfig = GlyphsData()
    """Which images there are."""
    augmentation: AugmentationConfig = AugmentationConfig()
    """How an image becomes the network's input."""
    sampler: SamplerConfig = DEFAULT_SAMPLER
    """Which images make a batch."""
    loss: LossConfig = ProxyAnchorConfig()
    """What is minimised."""
    model: ModelConfig = ModelConfig()
    """The network."""
    trunk: TrunkConfig = TrunkConfig()
    """Which part of the trunk learns."""
    optimizer: OptimizerConfig = AdamWConfig()
    """How the weights move."""
    schedule: ScheduleConfig = CosineScheduleConfig()
    """How the learning rate moves."""
    training: TrainingConfig = TrainingConfig()
    """The training loop."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """How the model is judged."""
    trial: TeamConfig = TeamConfig()
    """Over how many processes one trial is trained."""

    @property
    def input_size_px(self) -> int:
        """Side of the network's square input."""
        return self.augmentation.input_size_px or self.data.image_size_px

    @property
    def normalizes_embeddings(self) -> bool:
        """Whether the model ends in an L2 normalisation."""
        if self.model.normalize != "auto":
            return self.model.normalize == "yes"
        return self.loss.name != "log_ratio" and getattr(self.loss, "normalize", True) is True

    @property
    def uses_continuous_labels(self) -> bool:
        """Whether the loss learns from continuous labels."""
        return self.loss.name in CONTINUOUS_LOSSES

    @property
    def retrieval_metric(self) -> Literal["cosine", "euclidean"]:
        """How embeddings are compared in evaluation, as the loss compared them."""
        return "euclidean" if self.loss.name == "log_ratio" else "cosine"

    @property
    def selection_metric(self) -> str:
        """Full name of the validation metric that chooses the best epoch."""
        chosen = self.training.selection_metric
        if chosen == "auto":
            learns_labels = self.uses_continuous_labels or self.data.quantize_bins > 0
            chosen = "ndcg" if learns_labels else "map_at_r"
        return f"ndcg_at_{self.evaluation.ndcg_at[0]}" if chosen == "ndcg" else chosen

    @model_validator(mode="after")
    def check_parts_fit(self) -> Self:
        """Refuses combinations that cannot train, all of them at once."""
        problems = list(self._misfits())
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def _misfits(self) -> list[str]:
        problems = []
        has_labels = bool(self.data.continuous_labels)
        if self.uses_continuous_labels and not has_labels:
            problems.append(
                f"loss.name={self.loss.name} learns from continuous labels, so "
                "data.continuous_labels must name at least one column. Got none"
            )
        if self.sampler.name == "dense" and not has_labels:
            problems.append(
                "sampler.name=dense looks for the nearest by continuous label, so "
                "data.continuous_labels must name at least one column. Got none"
            )
        if self.data.quantize_bins and not has_labels:
            problems.append(
                "data.quantize_bins cuts the continuous labels into classes, so "
                "data.continuous_labels must name at least one column. Got none"
            )
        if self.selection_metric.startswith("ndcg") and not has_labels:
            problems.append(
                "training.selection_metric=ndcg compares continuous labels, so "
                "data.continuous_labels must name at least one column. Got none"
            )
        if self.data.fold >= self.data.folds:
            problems.append(
                f"data.fold must be below data.folds. "
                f"Got data.fold={self.data.fold} and data.folds={self.data.folds}"
            )
        if getattr(self.loss, "anchors", "every") == "heads" and self.sampler.name != "dense":
            problems.append(
                f"loss.anchors=heads needs the groups of sampler.name=dense. "
                f"Got sampler.name={self.sampler.name}"
            )
        wanted = self.selection_metric
        if wanted == "recall_at_1" and 1 not in self.evaluation.recall_at:
            problems.append(
                f"training.selection_metric=recall_at_1 needs 1 in evaluation.recall_at. "
                f"Got {list(self.evaluation.recall_at)}"
            )
        if self.training.warmup_epochs >= self.training.epochs:
            problems.append(
                f"training.warmup_epochs must be below training.epochs, or the trunk never learns. "
                f"Got {self.training.warmup_epochs} and {self.training.epochs}"
            )
        return problems + self._misfits_of_team()

    def _misfits_of_team(self) -> list[str]:
        problems, workers = [], self.trial.workers
        if workers > self.sampler.batch_size:
            problems.append(
                f"trial.workers must be at most sampler.batch_size, so that each has an image. "
                f"Got {workers} and {self.sampler.batch_size}"
            )
        if workers > 1 and self.training.compile:
            problems.append(
                "training.compile=true needs trial.workers=1: batch norms of a compiled network "
                f"do not see the whole batch. Got trial.workers={workers}"
            )
        return problems
