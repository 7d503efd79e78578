"""The numbers behind a figure: series of points with intervals, in panels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dml_core.analysis.estimates import compute_mean, estimate_interval
from dml_core.analysis.observations import Curve, Observations
from dml_core.config.loading import to_flat_dict
from dml_core.studies.definition import Figure, Published
from dml_core.studies.resolved import ResolvedStudy
from tasks.report_page.style import PUBLISHED, name_metric, show_value, unit_of

NO_TRAINING = "no training"
"""What scores without training are called."""


@dataclass(frozen=True)
class Point:
    """One drawn point: a mean over seeds with its 95 % interval."""

    x: Any
    mean: float | None
    """None where there is no score."""
    low: float | None = None
    """None with fewer than two seeds."""
    high: float | None = None
    num_seeds: int = 0


@dataclass(frozen=True)
class Series:
    """Points of one colour."""

    name: str
    points: tuple[Point, ...]

    @property
    def has_scores(self) -> bool:
        """Returns whether any point has a score."""
        return any(point.mean is not None for point in self.points)


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    metric: str
    """Decides the unit; the first of several that share the axes."""
    series: tuple[Series, ...]
    title: str = ""
    """Distinguishes it from the other panels; empty for a single one."""
    untrained: Mapping[str, float] = field(default_factory=dict)
    """What no training gives, by name, as lines across the panel."""
    untrained_curves: tuple[Series, ...] = ()
    """What no training gives at each x, where x is a number in the metric's name."""

    @property
    def lines(self) -> tuple[Series, ...]:
        """The series of the arms, then those without training."""
        return (*self.series, *self.untrained_curves)

    @property
    def points(self) -> list[Point]:
        """All points of the arms."""
        return [point for series in self.series for point in series.points]

    @property
    def xs(self) -> list[Any]:
        """Every x once: numbers sorted, names in the order of the arms."""
        found = list(dict.fromkeys(point.x for point in self.points if point.x is not None))
        return sorted(found) if all(is_number(x) for x in found) else found


def make_panels(study: ResolvedStudy, observations: Observations, figure: Figure) -> list[Panel]:
    """Returns the panels of a figure of lines, bars or a heat map.

    Metrics with the same unit and few lines share axes; otherwise each has its own.
    """
    make = _curve_series if figure.is_curves else _arm_series
    panels = [
        Panel(
            metric,
            make(study, observations, figure, metric),
            name_metric(metric) if len(figure.y) > 1 else "",
            _find_untrained(observations, metric),
            _find_untrained_curves(observations, metric),
        )
        for metric in figure.y
    ]
    return [_merge(panels)] if figure.kind != "heatmap" and _share_axes(panels) else panels


def _find_untrained(observations: Observations, metric: str) -> dict[str, float]:
    """Returns the scores without training by name; only test scores have them.

    Features without training are not cut, so scores by length have the line of the whole features.
    """
    kind, _, name = metric.partition(".")
    name = name.removeprefix("dim*_")
    if kind != "test" or "*" in name:
        return {}
    found = observations.untrained
    return {each: scores[name] for each, scores in found.items() if name in scores}


def _find_untrained_curves(observations: Observations, metric: str) -> tuple[Series, ...]:
    curves = observations.untrained_curves(metric)
    return tuple(
        Series(f"{name}, {NO_TRAINING}", tuple(Point(x, y) for x, y in curve))
        for name, curve in curves.items()
    )


def make_point(x: Any, by_seed: Mapping[int, float], metric: str = "") -> Point:
    """Returns mean and interval over the seeds; that of a share stays within 0 and 1."""
    values = list(by_seed.values())
    if not values:
        return Point(x, None)
    if len(values) == 1:
        return Point(x, float(values[0]), num_seeds=1)
    is_share = bool(metric) and unit_of(metric).is_share
    low, high = estimate_interval(values, is_share=is_share)
    return Point(x, compute_mean(values), low, high, len(values))


def is_number(value: Any) -> bool:
    """Returns whether a value can be placed on a numeric axis."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def read_keys(study: ResolvedStudy, key: str) -> dict[str, Any]:
    """Returns each arm's value of a dotted key; its name for `arm`, an empty text for no key."""
    names = [arm.name for arm in study.arms]
    if not key or key == "arm":
        return {name: name if key else "" for name in names}
    return {name: to_flat_dict(study.arm_config(name)).get(key) for name in names}


def _arm_series(
    study: ResolvedStudy, observations: Observations, figure: Figure, metric: str
) -> tuple[Series, ...]:
    scalars = observations.scalars(metric)
    xs, groups = read_keys(study, figure.x), read_keys(study, figure.group)
    by_group: dict[str, list[Point]] = {}
    numeric = all(is_number(x) for x in xs.values())
    for arm in xs:
        x = xs[arm] if numeric else show_value(xs[arm])
        name = show_value(groups[arm]) if figure.group else ""
        # Two arms at the same x differ in a key that the figure does not show.
        if any(point.x == x for point in by_group.get(name, ())):
            name = f"{name} {arm}".strip()
        by_group.setdefault(name, []).append(make_point(x, scalars.get(arm, {}), metric))
    order = (lambda point: point.x) if numeric else (lambda point: 0)
    return tuple(Series(name, tuple(sorted(p, key=order))) for name, p in by_group.items())


def _curve_series(
    study: ResolvedStudy, observations: Observations, figure: Figure, metric: str
) -> tuple[Series, ...]:
    curves = observations.curves(metric, x=figure.x)
    groups = {arm: show_value(value) for arm, value in read_keys(study, figure.group).items()}
    names = [name for name in groups.values() if name]
    return tuple(
        Series(
            group if figure.group and names.count(group) == 1 else arm,
            average_curves(curves.get(arm, {}), metric) or (Point(None, None),),
        )
        for arm, group in groups.items()
    )


def average_curves(by_seed: Mapping[int, Curve], metric: str = "") -> tuple[Point, ...]:
    """Returns the mean curve over the seeds.

    Seeds are matched by x where they agree (epochs), otherwise by position in the curve, at the
    mean of their x (seconds).
    """
    if not by_seed:
        return ()
    grids = [[x for x, _ in curve] for curve in by_seed.values()]
    longest = max(grids, key=len)
    if all(set(grid) <= set(longest) for grid in grids):
        lookup = {seed: dict(curve) for seed, curve in by_seed.items()}
        return tuple(
            make_point(
                x, {seed: values[x] for seed, values in lookup.items() if x in values}, metric
            )
            for x in longest
        )
    return tuple(_average_place(by_seed, place, metric) for place in range(len(longest)))


def _average_place(by_seed: Mapping[int, Curve], place: int, metric: str) -> Point:
    found = {seed: curve[place] for seed, curve in by_seed.items() if place < len(curve)}
    mean_x = sum(x for x, _ in found.values()) / len(found)
    return make_point(mean_x, {seed: y for seed, (_, y) in found.items()}, metric)


def _share_axes(panels: Sequence[Panel]) -> bool:
    is_one_unit = len({unit_of(panel.metric).name for panel in panels}) == 1
    return len(panels) > 1 and is_one_unit and sum(len(panel.series) for panel in panels) <= 4


def _merge(panels: Sequence[Panel]) -> Panel:
    merged, curves, untrained = [], [], {}
    for panel in panels:
        for series in panel.series:
            parts = [series.name if len(panel.series) > 1 else "", panel.title]
            merged.append(replace(series, name=", ".join(filter(None, parts))))
        curves += [replace(s, name=f"{s.name}, {panel.title}") for s in panel.untrained_curves]
        untrained |= {f"{name}, {panel.title}": y for name, y in panel.untrained.items()}
    return Panel(panels[0].metric, tuple(merged), "", untrained, tuple(curves))


def make_published_panel(published: Published) -> Panel:
    """Returns the scores of a paper as a panel; x is numeric where every x is a number."""
    names = [x for values in published.series.values() for x in values]
    is_numeric = all(_is_numeric(name) for name in names)
    series = tuple(
        Series(
            name, tuple(Point(float(x) if is_numeric else x, value) for x, value in values.items())
        )
        for name, values in published.series.items()
    )
    title = f"{published.dataset}, {published.backbone}"
    return Panel(PUBLISHED, series, title)


def _is_numeric(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


Matrix = list[list[float]]


@dataclass(frozen=True)
class MatrixCell:
    """One drawn matrix: an arm's, after an epoch, averaged over the seeds."""

    arm: str
    epoch: int | None
    """None where the arm has no table."""
    points: tuple[Point, ...] = ()
    """Row by row, x is `row,column`."""
    num_columns: int = 0

    @property
    def name(self) -> str:
        """Arm and epoch."""
        return self.arm if self.epoch is None else f"{self.arm}, epoch {self.epoch}"

    @property
    def matrix(self) -> Matrix | None:
        """The means; NaN where there is none."""
        if not self.points:
            return None
        means = [np.nan if point.mean is None else point.mean for point in self.points]
        return np.reshape(means, (-1, self.num_columns)).tolist()  # type: ignore[no-any-return]


def make_matrix_rows(
    study: ResolvedStudy, observations: Observations, metric: str
) -> list[list[MatrixCell]]:
    """Returns a row for each arm: its first and its last table."""
    tables = observations.tables(metric)
    return [_make_row(arm.name, tables.get(arm.name, {})) for arm in study.arms]


def _make_row(arm: str, by_seed: Mapping[int, Mapping[int, Matrix]]) -> list[MatrixCell]:
    epochs = sorted({epoch for tables in by_seed.values() for epoch in tables})
    if not epochs:
        return [MatrixCell(arm, None), MatrixCell(arm, None)]
    return [_average(arm, epoch, by_seed) for epoch in (epochs[0], epochs[-1])]


def _average(arm: str, epoch: int, by_seed: Mapping[int, Mapping[int, Matrix]]) -> MatrixCell:
    found = {
        seed: np.array(tables[epoch], dtype=float)
        for seed, tables in by_seed.items()
        if epoch in tables
    }
    shape = next(iter(found.values())).shape
    points = tuple(
        make_point(
            f"{row},{column}",
            {s: float(m[row, column]) for s, m in found.items() if np.isfinite(m[row, column])},
        )
        for row in range(shape[0])
        for column in range(shape[1])
    )
    return MatrixCell(arm, epoch, points, shape[1])


def to_panel(rows: list[list[MatrixCell]], metric: str) -> Panel:
    """Returns the numbers of the matrices, one series a matrix."""
    cells = [cell for row in rows for cell in row]
    return Panel(metric, tuple(Series(c.name, c.points or (Point("", None),)) for c in cells))
