"""The optimiser and how its learning rate moves."""

from typing import Annotated, Literal

from pydantic import Field

from dml_core.config.section import ChosenSection


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
