"""What a study draws, and the published numbers that it draws beside its own."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from dml_core.config.section import Section

CURVE_AXES = ("epoch", "seconds", "hardness", "*")
"""Values of x along which one training gives a whole curve."""


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _with_text_keys(value: Any) -> Any:
    """YAML reads 30 and 0.1 as numbers, also where they are keys."""
    if not isinstance(value, dict):
        return value
    return {str(key): _with_text_keys(inner) for key, inner in value.items()}


Metrics = Annotated[tuple[str, ...], Field(min_length=1), BeforeValidator(_as_list)]


class Figure(Section):
    """One picture of a study's results."""

    kind: Literal["line", "lines", "bar", "heatmap", "matrices"] = "bar"
    """line: y over x; lines: one for each group; bar: one for each x; heatmap: x by group;
    matrices: the table y of each arm, after its first and its last epoch."""
    x: str = "arm"
    """A key that the arms vary; `arm` for bars; for lines also `epoch`, `seconds` (of training),
    `hardness` (of a gradient), or `*`, the number in the place of the star in y."""
    y: Metrics = ("test.recall_at_1",)
    """`test.`, `validation.`, `train.`, `cost.`, `gradient.` or `table.` and a name; several are
    drawn together."""
    group: str = ""
    """A key that the arms vary: one line, colour or row for each of its values. Curves without it
    have one line for each arm."""
    log_x: bool = False
    """Draw x on a logarithmic axis."""
    title: str = ""
    """What the picture shows; empty takes the study's question."""
    x_label: str = ""
    """Text below the axis, with its unit; empty takes the key."""
    y_label: str = ""
    """Text beside the axis, with its unit; empty takes the metric."""

    @property
    def is_curves(self) -> bool:
        """Whether each training gives a whole line."""
        return self.x in CURVE_AXES


class Published(Section):
    """Numbers that a paper printed, drawn in a panel of their own with what they are of."""

    dataset: str = Field(min_length=1)
    """What they were measured on."""
    backbone: str = Field(min_length=1)
    """The network."""
    source: str = Field(min_length=1)
    """Paper and table."""
    metric: str = "R@1 (%)"
    """What they are, with the unit."""
    x_label: str = ""
    """What the series run over; empty takes the figure's."""
    note: str = ""
    """What to know, such as that they were read off a plot."""
    series: Annotated[dict[str, dict[str, float]], BeforeValidator(_with_text_keys)] = Field(
        min_length=1
    )
    """For each line, bar colour or row of a heat map: value by x."""
