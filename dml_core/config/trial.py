"""Everything one training is made of."""

from typing import Literal, Self

from pydantic import Field, model_validator

from dml_core.config.data import AugmentationConfig, DataConfig, GlyphsData
from dml_core.config.evaluation import EvaluationConfig
from dml_core.config.losses import CONTINUOUS_LOSSES, LossConfig, ProxyAnchorConfig
from dml_core.config.model import ModelConfig, TrunkConfig
from dml_core.config.optimizer import (
    AdamWConfig,
    CosineScheduleConfig,
    OptimizerConfig,
    ScheduleConfig,
)
from dml_core.config.sampler import ClassBalancedSamplerConfig, SamplerConfig
from dml_core.config.section import Section
from dml_core.config.training import TeamConfig, TrainingConfig

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
