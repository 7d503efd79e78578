"""Which images make a batch."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dml_core.config.section import ChosenSection


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
