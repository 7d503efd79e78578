"""The parameters of each loss; dml_core.losses has the formulas."""

import math
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from dml_core.config.section import ChosenSection, Plain, Section, read_tag
from dml_core.own_code import PATTERN

Length = Annotated[int, Field(ge=1, le=65536)]


class LossBase(ChosenSection):
    """Base class of all losses."""

    matryoshka: tuple[Length, ...] = ()
    """Lengths of embedding prefixes, ascending up to model.embedding_dim: the loss is the sum of
    the losses of each prefix (Kusupati et al., 2022), so that one training serves all of these
    lengths. Proxies are cut to the same length. Empty: only the whole embedding."""

    @field_validator("matryoshka")
    @classmethod
    def check_lengths_ascend(cls, lengths: tuple[int, ...]) -> tuple[int, ...]:
        """Rejects lengths in another order, and a length that is given twice."""
        if any(left >= right for left, right in pairwise(lengths)):
            raise ValueError(f"must list each length once, the shortest first. Got {list(lengths)}")
        return lengths


class ProxyLossBase(LossBase):
    """A loss that compares images with one learned proxy per class."""

    proxy_ratio: float = Field(default=1.0, gt=0, le=1)
    """Share of all proxies in each step's loss: those of the batch's classes and a random sample of
    the others. Below 1, a proxy outside the sample is not updated: no decay, no momentum."""


class ExpansionConfig(Section):
    """Embedding Expansion (Ko and Gu, 2020): synthetic points between two images of a class."""

    points: int = Field(default=0, ge=0, le=256)
    """Synthetic points between the two embeddings of each pair; 0 turns expansion off."""
    normalize: bool = True
    """Put the synthetic points on the unit sphere."""


class ExpandableLossBase(LossBase):
    """A pair loss that can mine negatives among synthetic points."""

    expansion: ExpansionConfig = ExpansionConfig()
    """Synthetic points; off by default."""


class MemoryConfig(Section):
    """Cross-batch memory (Wang et al., 2020): embeddings of past batches as further pairs."""

    size: int = Field(default=0, ge=0, le=10_000_000)
    """Number of past embeddings that each image of a batch is compared with; 0 turns memory off.
    Take more than a pass over the classes (training classes x images of each in a batch): a smaller
    memory has hardly an image of a batch's own classes, and training with it fails."""
    start_epoch: int = Field(default=0, ge=0)
    """Epochs trained without the memory, while embeddings still change fast. It is filled
    meanwhile."""


class MemoryLossBase(LossBase):
    """A pair loss that can compare a batch with the embeddings of past batches."""

    memory: MemoryConfig = MemoryConfig()
    """Past embeddings; off by default."""

    @model_validator(mode="after")
    def check_memory(self) -> Self:
        """Rejects memory together with expansion: no definition covers both."""
        expansion = getattr(self, "expansion", None)
        if self.memory.size and expansion is not None and expansion.points:
            raise ValueError(
                "cannot use memory.size and expansion.points together: negatives come from past "
                f"batches or from synthetic points. Got {self.memory.size} and {expansion.points}. "
                "Set one of them to 0"
            )
        return self


class ProxyNcaConfig(ProxyLossBase):
    """Proxy-NCA (Movshovitz-Attias et al., 2017)."""

    name: Literal["proxy_nca"] = "proxy_nca"
    """The loss."""
    scale: float = Field(default=8.0, gt=0, le=1000)
    """Factor on the squared distance; acts as twice that on the cosine. Public code uses 32."""
    target_in_denominator: bool = False
    """False: the paper's formula, with only other classes in the denominator; True: a softmax."""


class ProxyAnchorConfig(ProxyLossBase):
    """Proxy-Anchor (Kim et al., 2020)."""

    name: Literal["proxy_anchor"] = "proxy_anchor"
    """The loss."""
    alpha: float = Field(default=32.0, gt=0, le=1000)
    """Sharpness: factor on the cosine."""
    delta: float = Field(default=0.1, ge=0, le=1)
    """Margin on the cosine."""


class NormSoftmaxConfig(ProxyLossBase):
    """NormSoftmax (Zhai and Wu, 2019)."""

    name: Literal["norm_softmax"] = "norm_softmax"
    """The loss."""
    temperature: float = Field(default=0.05, gt=0, le=10)
    """Temperature: divisor of the cosine."""


class ArcFaceConfig(ProxyLossBase):
    """ArcFace (Deng et al., 2019)."""

    name: Literal["arcface"] = "arcface"
    """The loss."""
    margin: float = Field(default=0.3, ge=0, le=math.pi)
    """Margin added to the angle between an image and its proxy, in radians."""
    scale: float = Field(default=30.0, gt=0, le=1000)
    """Factor on the cosine."""


class ContrastiveConfig(MemoryLossBase):
    """Contrastive loss (Hadsell et al., 2006) with unsquared distances on the unit sphere."""

    name: Literal["contrastive"] = "contrastive"
    """The loss."""
    positive_margin: float = Field(default=0.0, ge=0, le=2)
    """Distance below which a pair of the same class has zero loss."""
    negative_margin: float = Field(default=0.5, ge=0, le=2)
    """Distance above which a pair of different classes has zero loss."""


class TripletConfig(ExpandableLossBase, MemoryLossBase):
    """Triplet loss (Schroff et al., 2015) with unsquared distances on the unit sphere."""

    name: Literal["triplet"] = "triplet"
    """The loss."""
    mining: Literal["all", "semi_hard", "hard"] = "semi_hard"
    """all: every triplet; semi_hard: those with the negative inside the margin but farther than the
    positive; hard: the farthest positive and nearest negative of each anchor (HPHN)."""
    margin: float = Field(default=0.2, ge=0, le=2)
    """Distance by which a negative should be farther than a positive."""


class LiftedStructureConfig(ExpandableLossBase, MemoryLossBase):
    """Lifted structure (Song et al., 2016), smooth form on the unit sphere."""

    name: Literal["lifted_structure"] = "lifted_structure"
    """The loss."""
    margin: float = Field(default=1.0, ge=0, le=10)
    """Margin: distance up to which negatives are pushed away."""


class NPairConfig(ExpandableLossBase):
    """Multi-class N-pair (Sohn, 2016)."""

    name: Literal["n_pair"] = "n_pair"
    """The loss."""
    normalize: bool = True
    """Compare on the unit sphere. The paper uses false, with scale 1 and l2_weight 0.02."""
    scale: float = Field(default=16.0, gt=0, le=1000)
    """Factor on the similarity; without it, unit vectors cannot separate the classes."""
    l2_weight: float = Field(default=0.0, ge=0, le=10)
    """Weight of the mean squared norm of the embeddings."""


class MultiSimilarityConfig(ExpandableLossBase, MemoryLossBase):
    """Multi-similarity (Wang et al., 2019) on cosines."""

    name: Literal["multi_similarity"] = "multi_similarity"
    """The loss."""
    alpha: float = Field(default=2.0, gt=0, le=1000)
    """Sharpness for pairs of the same class."""
    beta: float = Field(default=50.0, gt=0, le=1000)
    """Sharpness for pairs of different classes."""
    base: float = Field(default=0.5, ge=-1, le=1)
    """Cosine threshold around which pairs are weighted."""
    mining_epsilon: float | None = Field(default=0.1, ge=0, le=2)
    """Margin of the pair mining; null uses all pairs."""


class LogRatioConfig(LossBase):
    """Log-ratio (Kim et al., 2019) on continuous labels; embeddings are not normalized."""

    name: Literal["log_ratio"] = "log_ratio"
    """The loss."""
    anchors: Literal["every", "heads"] = "every"
    """every: each image of a batch is an anchor; heads: only those of the dense sampler (paper)."""


class DenseTripletConfig(LossBase):
    """The log-ratio paper's baseline: a hinge on all triplets ordered by continuous label."""

    name: Literal["dense_triplet"] = "dense_triplet"
    """The loss."""
    margin: float = Field(default=0.03, ge=0, le=4)
    """Squared distance by which the image with the farther label should be farther."""
    anchors: Literal["every", "heads"] = "every"
    """every: each image of the batch is an anchor; heads: only those of the dense sampler."""


class OwnLossConfig(LossBase):
    """A loss of the project folder: a torch module with forward(embeddings, labels)."""

    name: str = Field(default="python:my_package.my_module:MyLoss", pattern=PATTERN)
    """`python:`, the module, and the class."""
    options: dict[str, Plain] = Field(default_factory=dict)
    """Keyword arguments; num_classes and embedding_dim are passed automatically."""


class PmlConfig(LossBase):
    """Any loss of pytorch-metric-learning, if that package is installed."""

    name: str = Field(default="pml:TripletMarginLoss", pattern=r"^pml:[A-Za-z0-9]+$")
    """`pml:` followed by the class name."""
    options: dict[str, Plain | dict[str, Any]] = Field(default_factory=dict)
    """Constructor arguments; num_classes and embedding_size are passed automatically. miner,
    distance, reducer, embedding_regularizer, weight_regularizer and, for pml:CrossBatchMemory, loss
    are mappings with the class as `name`."""


LossConfig = Annotated[
    Annotated[ProxyNcaConfig, Tag("proxy_nca")]
    | Annotated[ProxyAnchorConfig, Tag("proxy_anchor")]
    | Annotated[NormSoftmaxConfig, Tag("norm_softmax")]
    | Annotated[ArcFaceConfig, Tag("arcface")]
    | Annotated[ContrastiveConfig, Tag("contrastive")]
    | Annotated[TripletConfig, Tag("triplet")]
    | Annotated[LiftedStructureConfig, Tag("lifted_structure")]
    | Annotated[NPairConfig, Tag("n_pair")]
    | Annotated[MultiSimilarityConfig, Tag("multi_similarity")]
    | Annotated[LogRatioConfig, Tag("log_ratio")]
    | Annotated[DenseTripletConfig, Tag("dense_triplet")]
    | Annotated[OwnLossConfig, Tag("python")]
    | Annotated[PmlConfig, Tag("pml")],
    Discriminator(read_tag),
]
CONTINUOUS_LOSSES = ("log_ratio", "dense_triplet")
