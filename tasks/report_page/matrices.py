"""Figures of whole matrices: a table of each arm after its first and its last epoch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dml_core.analysis.observations import Observations
from dml_core.studies.definition import Figure
from dml_core.studies.resolved import ResolvedStudy
from tasks.report_page.draw import draw_matrix
from tasks.report_page.labels import label_metric
from tasks.report_page.panels import Panel, Point, Series, make_point
from tasks.report_page.style import plain

Matrix = list[list[float]]


@dataclass(frozen=True)
class MatrixCell:
    """One picture: an arm's matrix after an epoch, averaged over the seeds."""

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
    """Returns the numbers of the pictures, one series a picture."""
    cells = [cell for row in rows for cell in row]
    return Panel(metric, tuple(Series(c.name, c.points or (Point("", None),)) for c in cells))


def draw_matrices(canvas: Any, rows: list[list[MatrixCell]], figure: Figure) -> None:
    """Draws the pictures with one scale of colours for all, arms below each other."""
    matrices = [np.array(cell.matrix) for row in rows for cell in row if cell.matrix is not None]
    finite = np.concatenate([m[np.isfinite(m)] for m in matrices]) if matrices else np.zeros(1)
    limits = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    grid = canvas.subplots(len(rows), 2, squeeze=False)
    pictures = []
    for row, axes_row in zip(rows, grid, strict=True):
        for cell, axes in zip(row, axes_row, strict=True):
            pictures.append(draw_matrix(axes, cell.matrix, limits=limits))
            axes.set_title(plain(cell.name))
            if cell.points:
                axes.set_xlabel(plain(figure.x_label or "class"))
                axes.set_ylabel(plain(figure.x_label or "class"))
    drawn = [picture for picture in pictures if picture is not None]
    if drawn:
        label = plain(figure.y_label or label_metric(figure.y[0]))
        bar = canvas.colorbar(drawn[0], ax=grid, label=label, shrink=0.8)
        bar.outline.set_visible(False)
