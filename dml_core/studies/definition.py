"""A study as its YAML file says it: arms, figures and claims."""

import math
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from dml_core.config.loading import flatten, put_over
from dml_core.config.section import Section
from dml_core.studies.dimensions import DimensionField, is_dimension

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


class Side(Section):
    """One side of a claim: the mean of a metric over some arms, seed by seed."""

    arms: tuple[str, ...] = Field(min_length=1)
    """Names of arms; several are averaged."""
    metric: str = ""
    """As in figures; `first.`, `last.` or `mean.` before it takes one number of a curve over the
    epochs. Empty takes the main figure's first."""


class Trend(Section):
    """How a metric changes with a key that the arms vary: its slope over the values' ranks."""

    key: str
    """A key with numbers as values."""
    metric: str = ""
    """As in `Side`."""
    arms: tuple[str, ...] = ()
    """Only these arms; empty takes all."""


class Claim(Section):
    """A sentence of a paper and the rule that says whether a run supports it.

    The left side less the right one (or the slope of a trend) is taken for each seed. Its 95 %
    interval over the seeds decides: supported where all of it is as expected, contradicted where
    none of it is, and otherwise nobody can tell.
    """

    text: str = Field(min_length=1)
    """What the paper says, in one line."""
    left: Side | None = None
    """The side that is claimed to be higher or lower."""
    right: Side | None = None
    """What it is compared with; empty compares with zero."""
    trend: Trend | None = None
    """In the place of the two sides."""
    expect: Literal["higher", "lower", "within"] = "higher"
    """Whether the difference lies above `by`, below minus `by`, or between the two."""
    by: float = Field(default=0.0, ge=0)
    """By how much at least; for within, at most."""
    ratio: bool = False
    """Take the left side divided by the right one, less 1, in the place of the difference."""

    @model_validator(mode="after")
    def check_sides(self) -> Self:
        """Refuses a claim that says nothing, or two things."""
        if (self.left is None) == (self.trend is None):
            found = "both" if self.left else "neither"
            raise ValueError(f"needs exactly one of left and trend. Got {found}")
        if self.right is None and self.ratio:
            raise ValueError("ratio needs a right side to divide by. Got none")
        if self.expect == "within" and self.by == 0:
            raise ValueError("expect: within needs by, the largest difference that still counts")
        return self


Searcher = Literal["grid", "random", "tpe"]
Measure = Literal["gradients", "step_cost"]
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$"
"""Names of studies and arms: they become folders, tags and columns."""

MAX_ARMS = 1_000
MAX_PROFILES = 20
MAX_SEEDS = 1_000
MAX_LISTED = 100
"""Claims, figures and published tables, of each so many."""

Name = Annotated[str, Field(pattern=NAME_PATTERN)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]


def _flatten_values(value: Any) -> Any:
    return flatten(value) if isinstance(value, dict) else value


def _flatten_dimensions(value: Any, prefix: str = "") -> Any:
    """Flattens nested mappings down to the ranges, which are mappings too."""
    if not isinstance(value, dict):
        return value
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        if isinstance(inner, dict) and not is_dimension(inner):
            flat.update(_flatten_dimensions(inner, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = inner
    return flat


Values = Annotated[dict[str, Any], BeforeValidator(_flatten_values)]
"""Values by dotted key; sections may be nested or dotted."""
Space = Annotated[dict[str, DimensionField], BeforeValidator(_flatten_dimensions)]
"""Ranges by dotted key."""


def _check_unique(seeds: tuple[int, ...]) -> tuple[int, ...]:
    twice = sorted({seed for seed in seeds if seeds.count(seed) > 1})
    if twice:
        listed = ", ".join(map(str, twice))
        raise ValueError(f"must differ, or one run counts as two. Got {listed} more than once")
    return seeds


Seeds = Annotated[
    tuple[Seed, ...], Field(min_length=1, max_length=MAX_SEEDS), AfterValidator(_check_unique)
]
GridValues = Annotated[list[Any], Field(min_length=1)]


class ArmDefinition(Section):
    """One answer to the question: what it sets, and what is tuned for it alone."""

    scientific: Values = Field(default_factory=dict)
    """What the question is about."""
    nuisance: Space = Field(default_factory=dict)
    """Ranges of this arm's own knobs; for a key of the study's nuisance, this range counts."""
    compare_with: str = ""
    """The arm that its score is compared with; empty takes the study's baseline."""

    @model_validator(mode="before")
    @classmethod
    def read_short_form(cls, value: Any) -> Any:
        """Takes a mapping of dotted keys as the scientific values."""
        is_short = isinstance(value, dict) and not set(cls.model_fields) & set(value)
        return {"scientific": value} if is_short else value


class SchedulerConfig(Section):
    """Whether unpromising trials of the search end early."""

    name: Literal["none", "asha"] = "none"
    """none lets every trial finish; asha ends those behind the others of their arm."""
    grace_epochs: int = Field(default=1, ge=1)
    """asha: epochs that every trial gets."""
    reduction_factor: int = Field(default=3, ge=2, le=64)
    """asha: of so many trials one goes on at each rung, and rungs are so far apart."""


class Profile(Section):
    """Another size of the same study, put over it when asked for by name."""

    fixed: Values = Field(default_factory=dict)
    """Merged over the study's fixed, key by key; where it chooses another kind, as by data.name,
    keys that this kind does not have are dropped."""
    nuisance: Space = Field(default_factory=dict)
    """Merged over the study's nuisance, key by key."""
    arms: tuple[Name, ...] | None = Field(default=None, min_length=1)
    """Keep only these arms."""
    trials_per_arm: int | None = Field(default=None, ge=1, le=100_000)
    """In the place of the study's."""
    seeds: Seeds | None = None
    """In the place of the study's."""
    folds: int | None = Field(default=None, ge=1, le=20)
    """In the place of the study's."""
    searcher: Searcher | None = None
    """In the place of the study's."""
    scheduler: SchedulerConfig | None = None
    """In the place of the study's."""


class Study(Section):
    """A question, its arms, what is tuned for each, and how the answer is drawn."""

    question: str = Field(min_length=1)
    """What the study asks, in one sentence."""
    source: str = ""
    """Where the question comes from, such as a paper's table."""
    claims: tuple[Claim, ...] = Field(default=(), max_length=MAX_LISTED)
    """What the source answers, each with the rule that it is judged by."""
    arms: dict[Name, ArmDefinition] | None = None
    """The answers, by name."""
    grid: Annotated[dict[str, GridValues] | None, BeforeValidator(_flatten_values)] = None
    """Values by key; each combination is an arm (of each listed arm, where there are some)."""
    fixed: Values = Field(default_factory=dict)
    """The same for every arm."""
    nuisance: Space = Field(default_factory=dict)
    """Tuned anew for every arm."""
    trials_per_arm: int | None = Field(default=None, ge=1, le=100_000)
    """Tries for each arm, the same for all; may be left out where there is no nuisance or the
    grid says it."""
    seeds: Seeds = (0, 1, 2, 3, 4)
    """Each winner is trained with each of them; the search uses the first."""
    baseline: str = ""
    """The arm that the others are compared with; empty takes the first. The arms of another
    question in the same study say compare_with."""
    searcher: Searcher = "random"
    """grid tries every combination of choices; random draws; tpe learns from earlier tries."""
    scheduler: SchedulerConfig = SchedulerConfig()
    """Whether unpromising trials end early."""
    folds: int | None = Field(default=None, ge=1, le=20)
    """Class-disjoint folds over which a try is judged; empty takes data.folds of params.yaml."""
    figure: Figure = Figure()
    """What the report draws on top; the verdicts go by its first metric."""
    figures: tuple[Figure, ...] = Field(default=(), max_length=MAX_LISTED)
    """What it draws besides."""
    published: tuple[Published, ...] = Field(default=(), max_length=MAX_LISTED)
    """What papers printed, drawn beside the figure."""
    measures: tuple[Measure, ...] = ()
    """What is measured on the winners beside their test scores: `gradients`, the gradient's size
    by hardness; `step_cost`, the time and memory of a training step, all arms in turn."""
    profiles: dict[Name, Profile] = Field(default_factory=dict, max_length=MAX_PROFILES)
    """Other sizes of the study, by name."""

    @model_validator(mode="after")
    def check_there_are_arms(self) -> Self:
        """Refuses a study that compares nothing."""
        if not self.arms and not self.grid:
            found = "neither" if self.arms is None and self.grid is None else "an empty mapping"
            raise ValueError(f"arms (or grid) must name at least one arm. Got {found}")
        # Counted before the combinations are made, which might fill the memory.
        total = len(self.arms or [0]) * math.prod(len(v) for v in (self.grid or {}).values())
        if total > MAX_ARMS:
            raise ValueError(f"arms and grid must make at most {MAX_ARMS:,} arms. Got {total:,}")
        return self


def apply_profile(study: Study, profile: Profile) -> Study:
    """Returns the study with a profile put over it; the profile's `arms` are left to the caller."""
    changes: dict[str, Any] = {
        "fixed": put_over(study.fixed, profile.fixed),
        "nuisance": {**study.nuisance, **profile.nuisance},
    }
    for key in ("trials_per_arm", "seeds", "folds", "searcher", "scheduler"):
        if getattr(profile, key) is not None:
            changes[key] = getattr(profile, key)
    return study.model_copy(update=changes)
