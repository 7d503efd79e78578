"""A study as written in its YAML file: arms, search, figures and claims."""

import math
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from dml_core.config.loading import flatten, put_over
from dml_core.config.section import Section
from dml_core.studies.dimensions import DimensionField, is_dimension

CURVE_AXES = ("epoch", "seconds", "hardness", "*")
"""Values of x for which one training gives a curve."""


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _with_text_keys(value: Any) -> Any:
    """Converts keys to text: YAML reads 30 and 0.1 as numbers."""
    if not isinstance(value, dict):
        return value
    return {str(key): _with_text_keys(inner) for key, inner in value.items()}


Metrics = Annotated[tuple[str, ...], Field(min_length=1), BeforeValidator(_as_list)]


class Figure(Section):
    """One figure of a study's results."""

    kind: Literal["line", "lines", "bar", "heatmap", "matrices"] = "bar"
    """line: y over x; lines: one line per group; bar: one bar per x; heatmap: x by group;
    matrices: the table y of each arm, after its first and its last epoch."""
    x: str = "arm"
    """A key that the arms vary; `arm` for bars; for lines also `epoch`, `seconds` (of training),
    `hardness` (of a pair), or `*`, the number at the star in y."""
    y: Metrics = ("test.recall_at_1",)
    """A name with the prefix `test.`, `validation.`, `train.`, `cost.`, `gradient.`, `search.` or
    `table.`; several are drawn together."""
    group: str = ""
    """A key that the arms vary: one line, colour or row per value. Curves without it have one line
    per arm."""
    log_x: bool = False
    """Whether x has a logarithmic axis."""
    title: str = ""
    """Title; empty takes the study's question."""
    x_label: str = ""
    """Label of the x axis with its unit; empty takes the key."""
    y_label: str = ""
    """Label of the y axis with its unit; empty takes the metric."""

    @property
    def is_curves(self) -> bool:
        """Whether each training gives a curve."""
        return self.x in CURVE_AXES


class Published(Section):
    """Numbers from a paper, drawn in a separate panel."""

    dataset: str = Field(min_length=1)
    """Dataset of the numbers."""
    backbone: str = Field(min_length=1)
    """Network of the numbers."""
    source: str = Field(min_length=1)
    """Paper and table."""
    metric: str = "R@1 (%)"
    """Name of the metric, with its unit."""
    x_label: str = ""
    """Label of the x axis; empty takes that of the figure."""
    note: str = ""
    """A remark, such as that the numbers were read off a plot."""
    series: Annotated[dict[str, dict[str, float]], BeforeValidator(_with_text_keys)] = Field(
        min_length=1
    )
    """Values by x, for each line, bar colour or row of a heat map."""


class Side(Section):
    """One side of a claim: the mean of a metric over arms, by seed."""

    arms: tuple[str, ...] = Field(min_length=1)
    """Names of arms; several are averaged."""
    metric: str = ""
    """A metric as in figures; the prefix `first.`, `last.` or `mean.` reduces a curve over epochs
    to one number. Empty takes the main figure's first."""


class Trend(Section):
    """Change of a metric with a key that the arms vary: its slope over the ranks of the values."""

    key: str
    """A key with numeric values."""
    metric: str = ""
    """As in `Side`."""
    arms: tuple[str, ...] = ()
    """Names of arms; empty takes all."""


class Claim(Section):
    """A sentence of a paper and the rule that decides whether a run supports it.

    The effect of a seed is the left side less the right side, or the slope of a trend. Its 95 %
    interval over the seeds decides: supported if all of it is as expected, contradicted if none of
    it is, and otherwise the claim cannot be decided.
    """

    text: str = Field(min_length=1)
    """The claim of the paper, in one line."""
    left: Side | None = None
    """The side that is claimed to be higher or lower."""
    right: Side | None = None
    """The side to compare with; empty compares with zero."""
    trend: Trend | None = None
    """A trend instead of two sides."""
    expect: Literal["higher", "lower", "within"] = "higher"
    """Whether the difference lies above `by`, below minus `by`, or between the two."""
    by: float = Field(default=0.0, ge=0)
    """The smallest difference that counts; for within, the largest."""
    ratio: bool = False
    """Whether the effect is left / right - 1 instead of the difference."""

    @model_validator(mode="after")
    def check_sides(self) -> Self:
        """Refuses a claim with neither or both of left and trend."""
        if (self.left is None) == (self.trend is None):
            found = "both" if self.left else "neither"
            raise ValueError(f"needs exactly one of left and trend. Got {found}")
        if self.right is None and self.ratio:
            raise ValueError("ratio needs a right side to divide by. Got none")
        if self.expect == "within" and self.by == 0:
            raise ValueError("expect: within needs by, the largest difference that counts as none")
        return self


Searcher = Literal["grid", "random", "tpe"]
Measure = Literal["gradients", "step_cost", "search_cost"]
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$"
"""Names of studies and arms, which become folders, tags and columns."""

MAX_ARMS = 1_000
MAX_PROFILES = 20
MAX_SEEDS = 1_000
MAX_LOOKS = 10
"""Most times that the results of a study are judged."""
MAX_LISTED = 100
"""Most claims, figures and published tables of a study."""

SEARCH_SEED = 2**32 - 1
"""Seed of every trial of a search. No study can list it, so the winners' seeds are fresh: a seed
that helped to choose a value would flatter it."""

Name = Annotated[str, Field(pattern=NAME_PATTERN)]
Seed = Annotated[int, Field(ge=0, lt=SEARCH_SEED)]


def _flatten_values(value: Any) -> Any:
    return flatten(value) if isinstance(value, dict) else value


def _flatten_dimensions(value: Any, prefix: str = "") -> Any:
    """Flattens nested mappings except for ranges, which are mappings too."""
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
"""Values by dotted key; the file may nest sections."""
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
    """One arm: the values it sets, and its own nuisance values."""

    scientific: Values = Field(default_factory=dict)
    """The values that the question compares."""
    nuisance: Space = Field(default_factory=dict)
    """Ranges of this arm; they override those of the study's nuisance."""
    compare_with: str = ""
    """The arm to compare its score with; empty takes the study's baseline."""

    @model_validator(mode="before")
    @classmethod
    def read_short_form(cls, value: Any) -> Any:
        """Reads a plain mapping of dotted keys as the scientific values."""
        is_short = isinstance(value, dict) and not set(cls.model_fields) & set(value)
        return {"scientific": value} if is_short else value


class SchedulerConfig(Section):
    """Whether the search prunes trials."""

    name: Literal["none", "asha"] = "none"
    """none lets every trial finish; asha prunes those that fall behind others of their arm."""
    grace_epochs: int = Field(default=1, ge=1)
    """asha: epochs before a trial can be pruned."""
    reduction_factor: int = Field(default=3, ge=2, le=64)
    """asha: one of this many trials continues at each rung; also the ratio between rungs."""


class Profile(Section):
    """Another size of the same study, applied over it by name."""

    fixed: Values = Field(default_factory=dict)
    """Merged over the study's fixed, key by key; if it selects another kind, as by data.name, keys
    that this kind does not have are dropped."""
    nuisance: Space = Field(default_factory=dict)
    """Merged over the study's nuisance, key by key."""
    arms: tuple[Name, ...] | None = Field(default=None, min_length=1)
    """Keep only these arms."""
    trials_per_arm: int | None = Field(default=None, ge=1, le=100_000)
    """Replaces the study's."""
    seeds: Seeds | None = None
    """Replaces the study's."""
    folds: int | None = Field(default=None, ge=1, le=20)
    """Replaces the study's."""
    searcher: Searcher | None = None
    """Replaces the study's."""
    scheduler: SchedulerConfig | None = None
    """Replaces the study's."""
    edge_rounds: int | None = Field(default=None, ge=0, le=10)
    """Replaces the study's."""
    baseline: str | None = None
    """Replaces the study's, which may not be among the profile's arms."""


class Study(Section):
    """A question, its arms, their search, and the figures of the answer."""

    question: str = Field(min_length=1)
    """The question, in one sentence."""
    source: str = ""
    """Origin of the question, such as a table of a paper."""
    claims: tuple[Claim, ...] = Field(default=(), max_length=MAX_LISTED)
    """Claims of the source, each with the rule that decides it."""
    arms: dict[Name, ArmDefinition] | None = None
    """The arms, by name."""
    grid: Annotated[dict[str, GridValues] | None, BeforeValidator(_flatten_values)] = None
    """Values by key; each combination is an arm, combined with each listed arm if there are any."""
    quick_arms: tuple[Name, ...] | None = Field(default=None, min_length=1)
    """Without a profile, keep only these arms: few arms trained to their end say more than many
    that are cut short. A profile keeps all arms, or those that it names."""
    fixed: Values = Field(default_factory=dict)
    """Values of every arm."""
    nuisance: Space = Field(default_factory=dict)
    """Ranges that are tuned for every arm separately."""
    trials_per_arm: int | None = Field(default=None, ge=1, le=100_000)
    """Search trials per arm, the same for all; may be omitted without nuisance or with a grid."""
    seeds: Seeds = (0, 1, 2, 3, 4)
    """Seeds with which each winner is trained; the search has a seed that is not among them."""
    baseline: str = ""
    """The arm to compare the others with; empty compares them with the best arm. An arm can name
    another one with compare_with. Verdicts do not depend on it."""
    smallest_effect: float = Field(default=0.01, gt=0)
    """The smallest difference worth having, for metrics that are shares: 0.01 is one point. Smaller
    ones are reported as no difference."""
    looks: int = Field(default=1, ge=1, le=MAX_LOOKS)
    """How often you will judge the results in all, where you add seeds to this file after a look.
    More looks are judged more strictly, so that the error rate holds over all of them. `dml run
    --until-decided` counts its own looks."""
    searcher: Searcher = "random"
    """grid runs every combination of choices; random samples; tpe learns from earlier trials."""
    scheduler: SchedulerConfig = SchedulerConfig()
    """Whether the search prunes trials."""
    edge_rounds: int = Field(default=2, ge=0, le=10)
    """Most further rounds of tries. There is one as long as the best value of an arm lies at an end
    of its range: that arm tries a value beyond it, and every other arm tries as many more."""
    folds: int | None = Field(default=None, ge=1, le=20)
    """Class-disjoint folds of the search; empty takes data.folds of params.yaml."""
    figure: Figure = Figure()
    """The main figure of the report; its first metric decides the verdicts."""
    figures: tuple[Figure, ...] = Field(default=(), max_length=MAX_LISTED)
    """Further figures of the report."""
    published: tuple[Published, ...] = Field(default=(), max_length=MAX_LISTED)
    """Numbers from papers, drawn beside the figure."""
    measures: tuple[Measure, ...] = ()
    """Measurements on the winners beside test scores: `gradients`, the gradient magnitude by
    hardness; `step_cost`, the time and memory of a training step; `search_cost`, R@1, bytes of an
    image and queries a second of quantised and approximate indexes of the test images."""
    profiles: dict[Name, Profile] = Field(default_factory=dict, max_length=MAX_PROFILES)
    """Other sizes of the study, by name."""

    @model_validator(mode="after")
    def check_there_are_arms(self) -> Self:
        """Refuses a study without arms, or with too many."""
        if not self.arms and not self.grid:
            found = "neither" if self.arms is None and self.grid is None else "an empty mapping"
            raise ValueError(f"arms (or grid) must name at least one arm. Got {found}")
        # Counted before the combinations are expanded, which could exhaust the memory.
        total = len(self.arms or [0]) * math.prod(len(v) for v in (self.grid or {}).values())
        if total > MAX_ARMS:
            raise ValueError(f"arms and grid must make at most {MAX_ARMS:,} arms. Got {total:,}")
        return self


def apply_profile(study: Study, profile: Profile) -> Study:
    """Returns the study with a profile applied; the caller applies the profile's `arms`."""
    changes: dict[str, Any] = {
        "fixed": put_over(study.fixed, profile.fixed),
        "nuisance": {**study.nuisance, **profile.nuisance},
    }
    replaced = (
        "trials_per_arm",
        "seeds",
        "folds",
        "searcher",
        "scheduler",
        "edge_rounds",
        "baseline",
    )
    for key in replaced:
        if getattr(profile, key) is not None:
            changes[key] = getattr(profile, key)
    return study.model_copy(update=changes)
