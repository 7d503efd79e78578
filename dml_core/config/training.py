"""How long, on what, over how many processes, and with which safeguards a trial trains."""

from typing import Literal

from pydantic import Field

from dml_core.config.section import Section


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
