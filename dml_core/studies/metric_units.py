"""How the values of a metric are written for people."""

from dataclasses import dataclass

_PLAIN = ("mean_label_distance_at_", "_distance", "_similarity", "left_out_pairs", "train.loss")


@dataclass(frozen=True)
class Unit:
    """What a value is multiplied by before it is shown, and what stands behind it."""

    factor: float
    name: str
    """With the space before it; empty for plain numbers."""
    difference_name: str
    """The same behind a difference: shares differ by points, not by percent."""
    digits: int
    """After the point."""
    is_share: bool = False
    """Whether values go from 0 to 1."""

    def show(self, value: float) -> str:
        """Returns a value without its unit."""
        return f"{self.factor * value:.{self.digits}f}"

    def show_difference(self, value: float) -> str:
        """Returns a difference with its sign, without its unit."""
        return f"{self.factor * value:+.{self.digits}f}"


SHARE = Unit(100, " %", " points", 1, is_share=True)
PLAIN = Unit(1, "", "", 4)
RATIO = Unit(100, " %", " %", 1)
"""Of a ratio less 1."""


def unit_of(metric: str) -> Unit:
    """Returns the unit of a metric's values, by its name with or without what stands before it."""
    if "cost.step_seconds" in metric:
        return Unit(1000, " ms", " ms", 2)
    if "cost.memory_mib" in metric:
        return Unit(1, " MiB", " MiB", 1)
    if "gradient." in metric or "table." in metric or any(part in metric for part in _PLAIN):
        return PLAIN
    return SHARE
