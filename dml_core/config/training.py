"""How a trial trains: its batches, optimizer, schedule, training loop and processes."""

from typing import Annotated, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from dml_core.config.section import ChosenSection, Plain, Section, read_tag
from dml_core.own_code import PATTERN


class SamplerBase(ChosenSection):
    """Settings that all samplers share."""

    batch_size: int = Field(default=100, ge=2, le=1_000_000)
    """Images in a batch; a balanced batch may hold slightly fewer, so that classes are equal."""


class ShuffledSamplerConfig(SamplerBase):
    """Every image once per epoch, in random order; the last, incomplete batch is dropped."""

    name: Literal["shuffled"] = "shuffled"
    """The sampler."""


class ClassBalancedSamplerConfig(SamplerBase):
    """classes_per_batch x samples_per_class images; set exactly one of the three keys."""

    name: Literal["class_balanced"] = "class_balanced"
    """The sampler."""
    class_ratio: float | None = Field(default=None, gt=0, le=1)
    """Share of the C training classes in one batch: max(2, round(class_ratio * C)) classes."""
    classes_per_batch: int | None = Field(default=None, ge=1)
    """Classes in a batch, with batch_size // classes_per_batch images each."""
    samples_per_class: int | None = Field(default=None, ge=1)
    """Images of each class in a batch of batch_size // samples_per_class classes."""

    @model_validator(mode="after")
    def check_one_key_is_set(self) -> Self:
        """Rejects a batch shape that is given twice or not at all."""
        keys = ("class_ratio", "classes_per_batch", "samples_per_class")
        chosen = [key for key in keys if getattr(self, key) is not None]
        if len(chosen) != 1:
            found = ", ".join(f"{key}={getattr(self, key)}" for key in chosen) or "none of them"
            raise ValueError(
                f"needs exactly one of {', '.join(keys)}, because batch_size determines the rest. "
                f"Got {found}. Set the others to null"
            )
        needed = self.classes_per_batch or self.samples_per_class or 1
        if needed > self.batch_size:
            raise ValueError(
                f"{chosen[0]} must be at most batch_size. "
                f"Got {chosen[0]}={needed} and batch_size={self.batch_size}"
            )
        return self


class DenseSamplerConfig(SamplerBase):
    """Groups of an anchor, its nearest images by continuous label, and uniformly drawn images."""

    name: Literal["dense"] = "dense"
    """The sampler."""
    anchors_per_batch: int = Field(default=1, ge=1)
    """Groups in a batch, one anchor each; must divide batch_size."""
    nearest: int = Field(default=5, ge=0)
    """Number of nearest images by label in each group."""
    epoch: Literal["images", "anchors"] = "images"
    """Length of an epoch: images draws each image once on average; anchors uses each as anchor."""

    @model_validator(mode="after")
    def check_groups_fit(self) -> Self:
        """Rejects groups that do not fill the batch or hold no triplet."""
        if self.batch_size % self.anchors_per_batch:
            raise ValueError(
                f"anchors_per_batch must divide batch_size, so that groups have equal size. "
                f"Got {self.anchors_per_batch} and {self.batch_size}"
            )
        group_size = self.batch_size // self.anchors_per_batch
        if group_size < max(3, self.nearest + 1):
            raise ValueError(
                f"batch_size / anchors_per_batch must be at least 3 and hold the anchor and its "
                f"nearest={self.nearest}. Got groups of {group_size}"
            )
        return self


class OwnSamplerConfig(SamplerBase):
    """A sampler of the project folder: a class with __len__() and epoch_batches(epoch)."""

    name: str = Field(default="python:my_package.my_module:MySampler", pattern=PATTERN)
    """`python:`, the module, and the class."""
    options: dict[str, Plain] = Field(default_factory=dict)
    """Keyword arguments; labels, continuous, batch_size and seed are passed automatically."""


SamplerConfig = Annotated[
    Annotated[ShuffledSamplerConfig, Tag("shuffled")]
    | Annotated[ClassBalancedSamplerConfig, Tag("class_balanced")]
    | Annotated[DenseSamplerConfig, Tag("dense")]
    | Annotated[OwnSamplerConfig, Tag("python")],
    Discriminator(read_tag),
]


class OptimizerBase(ChosenSection):
    """Settings that all optimizers share."""

    learning_rate: float = Field(default=2e-3, gt=0, le=100)
    """Base learning rate, multiplied by the factor of each part of the model."""
    trunk_factor: float = Field(default=1.0, ge=0, le=10_000)
    """Factor on the learning rate for the trunk."""
    head_factor: float = Field(default=1.0, ge=0, le=10_000)
    """Factor on the learning rate for the head (the projection)."""
    proxy_factor: float = Field(default=10.0, ge=0, le=10_000)
    """Factor on the learning rate for the parameters of the loss, its proxies."""
    weight_decay: float = Field(default=1e-4, ge=0, le=1)
    """Weight decay of all parts."""


class AdamWConfig(OptimizerBase):
    """AdamW."""

    name: Literal["adamw"] = "adamw"
    """The optimizer."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Decay rate of the first moment."""
    beta2: float = Field(default=0.999, ge=0, lt=1)
    """Decay rate of the second moment."""


class SgdConfig(OptimizerBase):
    """Stochastic gradient descent with momentum."""

    name: Literal["sgd"] = "sgd"
    """The optimizer."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Momentum factor."""


OptimizerConfig = Annotated[AdamWConfig | SgdConfig, Field(discriminator="name")]


class ConstantScheduleConfig(ChosenSection):
    """A constant learning rate."""

    name: Literal["constant"] = "constant"
    """The schedule."""


class StepScheduleConfig(ChosenSection):
    """The learning rate is multiplied by gamma at fixed intervals."""

    name: Literal["step"] = "step"
    """The schedule."""
    epochs: int = Field(default=10, ge=1)
    """Epochs between two steps, counted from epoch 0 including warm-up."""
    gamma: float = Field(default=0.5, gt=0, le=1)
    """Factor of each step."""


class CosineScheduleConfig(ChosenSection):
    """The learning rate follows half a cosine until the end of training."""

    name: Literal["cosine"] = "cosine"
    """The schedule."""
    final_fraction: float = Field(default=0.0, ge=0, le=1)
    """Share of the learning rate after the last step."""


class InverseTimeScheduleConfig(ChosenSection):
    """The learning rate is divided by 1 + decay * step."""

    name: Literal["inverse_time"] = "inverse_time"
    """The schedule."""
    decay: float = Field(default=1e-4, ge=0)
    """Decay per step."""


ScheduleConfig = Annotated[
    ConstantScheduleConfig | StepScheduleConfig | CosineScheduleConfig | InverseTimeScheduleConfig,
    Field(discriminator="name"),
]


class DdpConfig(Section):
    """Distributed training of one trial."""

    workers: int = Field(default=1, ge=1, le=1024)
    """World size: processes that split each batch, each with ray.cpus_per_trial and
    ray.gpus_per_trial. The global batch stays sampler.batch_size, so losses and gradients equal
    those of one process up to rounding. Changing it changes the rounding."""
    gpus_per_worker: float | None = Field(default=None, ge=0, le=64)
    """Logical GPUs of each of these processes, for an arm that needs more or fewer than others;
    null takes ray.gpus_per_trial."""


class TrainingConfig(Section):
    """The training loop."""

    epochs: int = Field(default=12, ge=1, le=100_000)
    """Number of epochs, as the sampler defines them."""
    warmup_epochs: int = Field(default=0, ge=0)
    """Initial epochs in which the trunk is frozen and only head and proxies learn."""
    new_optimizer_after_warmup: bool = False
    """Reset the optimizer state after the warm-up, as NormSoftmax does."""
    freeze_batch_norm: bool = False
    """Keep the running statistics of the trunk's batch norms unchanged."""
    gradient_clip: Literal["none", "value", "norm"] = "none"
    """Clip each gradient entry (value) or the norm of the whole gradient (norm)."""
    gradient_clip_at: float = Field(default=10.0, gt=0)
    """Threshold of the clipping."""
    precision: Literal["auto", "float32", "bfloat16"] = "float32"
    """bfloat16 runs the network under autocast; losses are always computed in float32. auto is
    bfloat16 on processors and GPUs with instructions for it, and float32 on others."""
    channels_last: bool = True
    """Use the channels_last memory format: faster on GPUs, and for convolutions on CPUs."""
    compile: bool = False
    """Compile the network with torch.compile."""
    device: str = Field(default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?|mps)$")
    """auto uses a GPU if one is available."""
    cpu_threads: int = Field(default=1, ge=1, le=1024)
    """Threads of each CPU operation. Changing it changes the rounding."""
    loader_workers: int = Field(default=1, ge=0, le=256)
    """Threads that prefetch batches; 0 loads them on the main thread. On a CPU, cached activations
    are always read on the main thread. Never changes a result."""
    validate_every: int = Field(default=1, ge=1)
    """Epochs between two validations; the last epoch is always validated."""
    selection_metric: Literal["auto", "recall_at_1", "map_at_r", "r_precision", "ndcg"] = "auto"
    """Validation metric that selects the best epoch; auto is ndcg if the loss learns from
    continuous labels or bins of them, and map_at_r otherwise."""
    select: Literal["best", "last"] = "best"
    """The trial's result: the best epoch by selection_metric, or the last one."""
    checkpoint_every: int = Field(default=1, ge=1)
    """Epochs between two checkpoints; the last epoch always has one."""
    keep_checkpoints: int = Field(default=2, ge=2)
    """Number of recent checkpoints to keep; at least two, in case the newest is damaged."""
    collapse_below: float = Field(default=1e-4, ge=0)
    """A trial ends as collapsed if the spread of its embeddings (mean standard deviation relative
    to their mean length) falls below this value."""
