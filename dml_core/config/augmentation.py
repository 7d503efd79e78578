"""How a packed image becomes the network's input, in training and in evaluation."""

from typing import Literal

from pydantic import Field

from dml_core.config.section import Section


class AugmentationConfig(Section):
    """A box is chosen in each image, cut out and resized to the input size; then flips."""

    input_size_px: int = Field(default=0, ge=0, le=4096)
    """Side of the square network input, in pixels; 0 takes data.image_size_px."""
    crop: Literal["center", "random_resized", "random", "jitter", "shift"] = "shift"
    """The training box: center (as in evaluation), random_resized (random area and aspect),
    random (input-sized box anywhere), jitter (central box of jittered size and place),
    shift (input-sized box moved by up to shift_px, black outside)."""
    min_area: float = Field(default=0.08, gt=0, le=1)
    """random_resized: smallest share of the image's area that a box may have."""
    max_aspect: float = Field(default=4 / 3, ge=1, le=4)
    """random_resized: the box's aspect lies between 1/max_aspect and max_aspect."""
    plain_probability: float = Field(default=0.0, ge=0, le=1)
    """random: chance that the whole image is taken and squeezed to the input size instead."""
    size_jitter_px: int = Field(default=12, ge=0)
    """jitter: each side of the box grows or shrinks by up to this, in packed pixels."""
    shift_px: int = Field(default=2, ge=0)
    """jitter and shift: the box moves by up to this along both axes, in packed pixels."""
    flip: Literal["none", "image", "batch"] = "none"
    """Mirror left and right with chance one half: never, each image, or the batch as one."""
    evaluation_crop: Literal["center", "whole"] = "center"
    """The box in evaluation: input-sized at the centre, or the whole image squeezed."""
