"""How a trial trains: its batches, optimizer, schedule, training loop and processes."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dml_core.config.section import ChosenSection, Section


class SamplerBase(ChosenSection):
    """What every sampler has."""

    batch_size: int = Field(default=100, ge=2, le=1_000_000)
    """Images in a batch; a balanced batch may hold a few less, so that classes are equal."""


class ShuffledSamplerConfig(SamplerBase):
    """Every image once an epoch in random order; the last, shorter batch is dropped."""

    name: Literal["shuffled"] = "shuffled"
    """The sampler."""


class ClassBalancedSamplerConfig(SamplerBase):
    """classes_per_batch x samples_per_class; set exactly one of the three knobs."""

    name: Literal["class_balanced"] = "class_balanced"
    """The sampler."""
    class_ratio: float | None = Field(default=None, gt=0, le=1)
    """Share of the training classes that one batch holds: max(2, round(class_ratio * C))."""
    classes_per_batch: int | None = Field(default=None, ge=1)
    """Classes in a batch; each gives batch_size // classes_per_batch images."""
    samples_per_class: int | None = Field(default=None, ge=1)
    """Images of each class in a batch; there are batch_size // samples_per_class classes."""

    @model_validator(mode="after")
    def check_one_knob_is_set(self) -> Self:
        """Refuses a batch whose shape is said twice, or not at all."""
        knobs = ("class_ratio", "classes_per_batch", "samples_per_class")
        chosen = [key for key in knobs if getattr(self, key) is not None]
        if len(chosen) != 1:
            found = ", ".join(f"{key}={getattr(self, key)}" for key in chosen) or "none of them"
            raise ValueError(
                f"needs exactly one of {', '.join(knobs)}, since batch_size gives the rest. "
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
    """Groups of an anchor, its nearest images by continuous label, and others drawn uniformly."""

    name: Literal["dense"] = "dense"
    """The sampler."""
    anchors_per_batch: int = Field(default=1, ge=1)
    """Groups in a batch, each with its own anchor; divides batch_size."""
    nearest: int = Field(default=5, ge=0)
    """Nearest images by label in each group."""
    epoch: Literal["images", "anchors"] = "images"
    """An epoch is as many batches as hold all images once, or every image once an anchor."""

    @model_validator(mode="after")
    def check_groups_fit(self) -> Self:
        """Refuses groups that do not fill the batch or hold no triplet."""
        if self.batch_size % self.anchors_per_batch:
            raise ValueError(
                f"anchors_per_batch must divide batch_size, so that groups are equal. "
                f"Got {self.anchors_per_batch} and {self.batch_size}"
            )
        group_size = self.batch_size // self.anchors_per_batch
        if group_size < max(3, self.nearest + 1):
            raise ValueError(
                f"batch_size / anchors_per_batch must be at least 3 and hold the anchor and its "
                f"nearest={self.nearest}. Got groups of {group_size}"
            )
        return self


SamplerConfig = Annotated[
    ShuffledSamplerConfig | ClassBalancedSamplerConfig | DenseSamplerConfig,
    Field(discriminator="name"),
]


class OptimizerBase(ChosenSection):
    """What every optimiser has."""

    learning_rate: float = Field(default=2e-3, gt=0, le=100)
    """Base learning rate; each part of the model takes it times its own factor."""
    trunk_factor: float = Field(default=1.0, ge=0, le=10_000)
    """Factor on the learning rate for the trunk."""
    head_factor: float = Field(default=1.0, ge=0, le=10_000)
    """Factor on the learning rate for the head (the projection)."""
    proxy_factor: float = Field(default=10.0, ge=0, le=10_000)
    """Factor on the learning rate for what the loss learns: its proxies."""
    weight_decay: float = Field(default=1e-4, ge=0, le=1)
    """Weight decay of every part."""


class AdamWConfig(OptimizerBase):
    """AdamW."""

    name: Literal["adamw"] = "adamw"
    """The optimiser."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Decay of the gradient's mean."""
    beta2: float = Field(default=0.999, ge=0, lt=1)
    """Decay of the squared gradient's mean."""


class SgdConfig(OptimizerBase):
    """Stochastic gradient descent with momentum."""

    name: Literal["sgd"] = "sgd"
    """The optimiser."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Share of the former step that is kept."""


OptimizerConfig = Annotated[AdamWConfig | SgdConfig, Field(discriminator="name")]


class ConstantScheduleConfig(ChosenSection):
    """The learning rate stays."""

    name: Literal["constant"] = "constant"
    """The schedule."""


class StepScheduleConfig(ChosenSection):
    """The learning rate is multiplied by gamma every so many epochs."""

    name: Literal["step"] = "step"
    """The schedule."""
    epochs: int = Field(default=10, ge=1)
    """Epochs between two steps, counted from epoch 0, warm-up included."""
    gamma: float = Field(default=0.5, gt=0, le=1)
    """Factor of each step."""


class CosineScheduleConfig(ChosenSection):
    """The learning rate follows half a cosine to the end of training."""

    name: Literal["cosine"] = "cosine"
    """The schedule."""
    final_fraction: float = Field(default=0.0, ge=0, le=1)
    """Share of the learning rate that is left after the last step."""


class InverseTimeScheduleConfig(ChosenSection):
    """The learning rate is divided by 1 + decay * step."""

    name: Literal["inverse_time"] = "inverse_time"
    """The schedule."""
    decay: float = Field(default=1e-4, ge=0)
    """Decay for each step."""


ScheduleConfig = Annotated[
    ConstantScheduleConfig | StepScheduleConfig | CosineScheduleConfig | InverseTimeScheduleConfig,
    Field(discriminator="name"),
]


class TeamConfig(Section):
    """The processes that train one trial together."""

    workers: int = Field(default=1, ge=1, le=1024)
    """Processes that share each batch of the trial, each with ray.cpus_per_trial and
    ray.gpus_per_trial. The batch stays sampler.batch_size, so that losses and gradients are those
    of one worker up to rounding. Part of the bits: another number rounds otherwise."""


class TrainingConfig(Section):
    """The training loop."""

    epochs: int = Field(default=12, ge=1, le=100_000)
    """Passes over the training data, as the sampler counts them."""
    warmup_epochs: int = Field(default=0, ge=0)
    """First epochs in which the trunk stands still and only head and proxies learn."""
    new_optimizer_after_warmup: bool = False
    """Start with fresh optimiser state when the warm-up ends (NormSoftmax does)."""
    freeze_batch_norm: bool = False
    """Keep the running statistics of the trunk's batch norms as they came."""
    gradient_clip: Literal["none", "value", "norm"] = "none"
    """Clip each gradient entry (value) or the whole gradient's length (norm)."""
    gradient_clip_at: float = Field(default=10.0, gt=0)
    """Where the clipping sets in."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16 runs the network under autocast; losses are always computed in float32."""
    channels_last: bool = True
    """Store feature maps with the channels last: faster on GPUs, and for convolutions on CPUs."""
    compile: bool = False
    """Compile the network with torch.compile."""
    device: str = Field(default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?|mps)$")
    """auto takes a GPU where there is one."""
    cpu_threads: int = Field(default=1, ge=1, le=1024)
    """Threads of each operation on the CPU. Part of the bits: another number rounds otherwise."""
    loader_workers: int = Field(default=1, ge=0, le=256)
    """Threads that make batches ahead; 0 makes them in line, as a CPU always does with what is kept
    of a frozen trunk. Never changes the bits."""
    validate_every: int = Field(default=1, ge=1)
    """Epochs between two validations; the last epoch is always validated."""
    selection_metric: Literal["auto", "recall_at_1", "map_at_r", "r_precision", "ndcg"] = "auto"
    """What the best epoch is chosen by, on the validation classes; auto is ndcg where the loss
    learns from continuous labels or bins of them, and map_at_r elsewhere."""
    select: Literal["best", "last"] = "best"
    """The trial's result: the best epoch by selection_metric, or the last one."""
    checkpoint_every: int = Field(default=1, ge=1)
    """Epochs between two checkpoints; the last epoch is always kept."""
    keep_checkpoints: int = Field(default=2, ge=2)
    """How many of the newest checkpoints stay; two, so that a damaged one has one before it."""
    collapse_below: float = Field(default=1e-4, ge=0)
    """An epoch whose embeddings spread (mean standard deviation relative to their mean length)
    less than this has collapsed: the trial ends with that outcome."""
