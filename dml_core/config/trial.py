"""The configuration of one trial."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dml_core.config.data import AugmentationConfig, DataConfig, GlyphsData
from dml_core.config.losses import CONTINUOUS_LOSSES, Length, LossConfig, ProxyAnchorConfig
from dml_core.config.section import Section
from dml_core.config.training import (
    AdamWConfig,
    ClassBalancedSamplerConfig,
    CosineScheduleConfig,
    DdpConfig,
    OptimizerConfig,
    SamplerConfig,
    ScheduleConfig,
    TrainingConfig,
)
from dml_core.own_code import NAME


class ModelConfig(Section):
    """The network: trunk, pooling, layer norm, projection, normalization."""

    backbone: str = Field(
        default="convnet", pattern=rf"^(convnet|(torchvision|timm):[\w.\-]+|{NAME})$"
    )
    """`convnet` (small, for CPU), `torchvision:<name>`, `timm:<name>`, or a network of the project
    folder as `python:<module>:<Name>`."""
    weights: str = "none"
    """none, imagenet (downloaded by the library), a file path, or weights inside an installed
    package: package:efficientnet_lite0, package:efficientnet_lite2 or package:mobilenet_v2."""
    width: int = Field(default=32, ge=4, le=1024)
    """convnet: channels of its first block; the later blocks have two and four times as many."""
    pixel_scaling: Literal["auto", "imagenet", "half", "caffe", "unit"] = "auto"
    """Input pixels: imagenet (mean and std), half (to -1..1), caffe (BGR 0..255 minus the mean),
    unit (0..1); auto uses the scaling that the weights were trained with."""
    pooling: Literal["avg", "max", "avg+max", "cls", "mean", "cls+mean", "own"] = "avg+max"
    """Global pooling. Of a feature map: avg, max, or avg+max, the sum of both. Of the tokens of a
    vision transformer: cls (its class token), mean (of the patches), cls+mean (both, side by side),
    or own, as the network was published; networks that pool otherwise have own alone."""
    layer_norm: bool = False
    """Layer norm without affine parameters, between pooling and projection."""
    embedding_dim: int = Field(default=128, ge=2, le=65536)
    """Length of an embedding."""
    projection: Literal["linear", "linear_no_bias", "none"] = "linear"
    """The layer from pooled feature to embedding; none needs a trunk of embedding_dim channels."""
    normalize: Literal["auto", "yes", "no"] = "auto"
    """L2-normalize the embedding; auto is yes, except for losses that need raw embeddings."""


class LoraConfig(Section):
    """Low-rank adaptation (Hu et al., 2022) of the trunk, for trunk.train=lora."""

    rank: int = Field(default=8, ge=1, le=4096)
    """Rank of the factors that are added to each layer."""
    alpha: float = Field(default=16.0, gt=0, le=100_000)
    """Scale of the added product: it is multiplied by alpha / rank."""
    targets: tuple[str, ...] = ()
    """Layers that get factors, by the end of their name, such as qkv; empty: every linear layer and
    every convolution that is not grouped."""


class TrunkConfig(Section):
    """Which part of the trunk learns."""

    train: str = Field(default="all", pattern=r"^(all|none|lora|from:[\w.]+)$")
    """all, none (only the head learns), from:<block> (that block and the later ones), or lora (only
    low-rank factors beside the layers; batch norms keep their statistics)."""
    lora: LoraConfig = LoraConfig()
    """The factors of lora."""
    cache: bool = True
    """Compute the frozen part once per image and cache it on disk for all trials."""
    cache_views: int = Field(default=1, ge=1, le=64)
    """Cached versions of each training image: the first is plain, the others are augmented."""

    @property
    def keeps_activations(self) -> bool:
        """Whether a trial reads cached activations instead of images."""
        return self.cache and self.train not in ("all", "lora")


Rank = Annotated[int, Field(ge=1, le=1_000_000)]
Share = Annotated[float, Field(gt=0, lt=1)]
Corruption = Literal["blur", "noise", "jpeg", "rotation", "crop"]
Severity = Annotated[int, Field(ge=1, le=5)]
SearchDevice = Literal["cpu", "gpu"]


class EvaluationConfig(Section):
    """Which metrics an evaluation computes, and how."""

    recall_at: tuple[Rank, ...] = Field(default=(1, 2, 4, 8), min_length=1)
    """Values of K for R@K."""
    clustering: bool = True
    """Compute NMI and pair F1 from k-means with one cluster per class."""
    kmeans_iterations: int = Field(default=50, ge=1, le=10_000)
    """Iterations of each k-means run."""
    kmeans_restarts: int = Field(default=1, ge=1, le=100)
    """Number of k-means runs; the run with the best objective counts."""
    binary: bool = False
    """Also evaluate embeddings of one bit per dimension (value > 0), by Hamming distance."""
    label_at: tuple[Rank, ...] = Field(default=(1, 5, 10), min_length=1)
    """Values of K for the mean label distance, with continuous labels."""
    ndcg_at: tuple[Rank, ...] = Field(default=(10, 50, 100), min_length=1)
    """Values of K for nDCG, with continuous labels; the first is `ndcg` for selection."""
    match_rates: tuple[Share, ...] = Field(default=(), max_length=32)
    """False match rates at which to report the false non-match rate and its threshold, over all
    pairs of images; empty: none."""
    occlusion: tuple[Share, ...] = ()
    """Sides of the black square that occludes each image, as shares of its side; empty: none."""
    corruptions: tuple[Corruption, ...] = ()
    """Corruptions of each image under which a model is scored again; empty: none."""
    severities: tuple[Severity, ...] = Field(default=(1, 3, 5), min_length=1)
    """Severities of the corruptions, from 1 (slight) to 5."""
    truncate_at: tuple[Length, ...] = ()
    """Lengths at which embeddings are also scored by their first dimensions alone, as `dimN_...`;
    at most model.embedding_dim. Works for every model; loss.matryoshka trains for it."""
    synthetic_points: int = Field(default=0, ge=0, le=256)
    """Synthetic points between the two images of a pair that are searched as queries; 0 omits
    `synthetic_recall_at_K`."""
    class_distances: int = Field(default=0, ge=0, le=1000)
    """Number of validation classes whose smallest mutual distances are recorded after each epoch;
    0 records none."""
    block_size: int = Field(default=1024, ge=1, le=1_000_000)
    """Queries searched at once; bounds memory, never changes a result."""
    compare_once_from: int = Field(default=16_384, ge=0)
    """Number of images from which each symmetric distance is computed once, if images are searched
    among themselves by cosine on the CPU; this halves the products. 0 turns it off. Results are
    unchanged except for ties within rounding."""
    search_device: SearchDevice = "cpu"
    """Device for neighbor search and clustering; gpu requires a GPU build of faiss. Results are
    unchanged except for ties within rounding."""
    batch_size: int = Field(default=64, ge=1, le=100_000)
    """Images embedded at once; on a CPU, small batches fit the cache and are faster."""


DEFAULT_SAMPLER = ClassBalancedSamplerConfig(class_ratio=0.2)


class TrialConfig(Section):
    """Everything that one trial needs: data, loss, model, training and evaluation."""

    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of everything random in the trial: initial weights, batches, augmentation."""
    data: DataConfig = GlyphsData()
    """The dataset."""
    augmentation: AugmentationConfig = AugmentationConfig()
    """How a packed image becomes a network input."""
    sampler: SamplerConfig = DEFAULT_SAMPLER
    """How batches are drawn."""
    loss: LossConfig = ProxyAnchorConfig()
    """The loss."""
    model: ModelConfig = ModelConfig()
    """The network."""
    trunk: TrunkConfig = TrunkConfig()
    """Which part of the trunk learns."""
    optimizer: OptimizerConfig = AdamWConfig()
    """The optimizer."""
    schedule: ScheduleConfig = CosineScheduleConfig()
    """The learning-rate schedule."""
    training: TrainingConfig = TrainingConfig()
    """The training loop."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """The evaluation."""
    trial: DdpConfig = DdpConfig()
    """Distributed training of one trial."""

    @property
    def input_size_px(self) -> int:
        """Side of the network's square input."""
        return self.augmentation.input_size_px or self.data.image_size_px

    @property
    def normalizes_embeddings(self) -> bool:
        """Whether the model ends in an L2 normalization."""
        if self.model.normalize != "auto":
            return self.model.normalize == "yes"
        return self.loss.name != "log_ratio" and getattr(self.loss, "normalize", True) is True

    @property
    def uses_continuous_labels(self) -> bool:
        """Whether the loss learns from continuous labels."""
        return self.loss.name in CONTINUOUS_LOSSES

    @property
    def retrieval_metric(self) -> Literal["cosine", "euclidean"]:
        """Metric of the retrieval, the same as in the loss."""
        return "euclidean" if self.loss.name == "log_ratio" else "cosine"

    @property
    def selection_metric(self) -> str:
        """Full name of the validation metric that selects the best epoch."""
        chosen = self.training.selection_metric
        if chosen == "auto":
            learns_labels = self.uses_continuous_labels or self.data.quantize_bins > 0
            chosen = "ndcg" if learns_labels else "map_at_r"
        return f"ndcg_at_{self.evaluation.ndcg_at[0]}" if chosen == "ndcg" else chosen

    @model_validator(mode="after")
    def check_parts_fit(self) -> Self:
        """Rejects combinations that cannot train, and reports all of them at once."""
        problems = self._find_conflicts() + self._find_length_conflicts()
        problems += self._find_trunk_conflicts() + self._find_ddp_conflicts()
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def _find_conflicts(self) -> list[str]:
        problems = []
        has_labels = bool(self.data.continuous_labels)
        if self.uses_continuous_labels and not has_labels:
            problems.append(
                f"loss.name={self.loss.name} learns from continuous labels, so "
                "data.continuous_labels must name at least one column. Got none"
            )
        if self.sampler.name == "dense" and not has_labels:
            problems.append(
                "sampler.name=dense finds neighbors by continuous label, so "
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
        memory = getattr(self.loss, "memory", None)
        if memory is not None and memory.size and memory.start_epoch >= self.training.epochs:
            problems.append(
                f"loss.memory.start_epoch must be below training.epochs, or the memory is never "
                f"used. Got {memory.start_epoch} and {self.training.epochs}"
            )
        return problems

    def _find_length_conflicts(self) -> list[str]:
        problems, dim = [], self.model.embedding_dim
        if self.loss.matryoshka and self.loss.matryoshka[-1] != dim:
            problems.append(
                f"loss.matryoshka must end with model.embedding_dim={dim}, because the dimensions "
                f"after its last length would not be trained. Got {list(self.loss.matryoshka)}"
            )
        if too_long := [length for length in self.evaluation.truncate_at if length > dim]:
            problems.append(
                f"evaluation.truncate_at must hold lengths up to model.embedding_dim={dim}, "
                f"because a prefix is not longer than the embedding. Got {too_long[0]}"
            )
        return problems

    def _find_trunk_conflicts(self) -> list[str]:
        train = self.trunk.train
        if train == "lora" or self.trunk.lora == LoraConfig():
            return []
        return [f"trunk.lora has no effect unless trunk.train is lora. Got trunk.train={train}"]

    def _find_ddp_conflicts(self) -> list[str]:
        problems, workers = [], self.trial.workers
        if workers > self.sampler.batch_size:
            problems.append(
                f"trial.workers must be at most sampler.batch_size, so that all ranks have images. "
                f"Got {workers} and {self.sampler.batch_size}"
            )
        if workers > 1 and self.training.compile:
            problems.append(
                "training.compile=true needs trial.workers=1: batch norms of a compiled network "
                f"do not see the whole batch. Got trial.workers={workers}"
            )
        return problems
