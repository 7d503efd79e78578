"""The rows of the benchmark table: measurement, reference and target."""

import json
import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

Direction = Literal["at most", "at least"]


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    group: str
    """Name of the benchmark, as in --only."""
    name: str
    """Name of the measurement; unique in its group."""
    against: str
    """The reference; empty if there is none."""
    unit: str
    """Unit of ours and theirs: ms, s, images/s, MiB."""
    ours: float
    """Median over the rounds."""
    theirs: float | None
    """Median over the rounds; None without a reference."""
    ratio: float
    """Median over the rounds of ours / theirs in the same round; ours without a reference."""
    spread: tuple[float, float]
    """Lower and upper quartile of the ratio over the rounds."""
    target: float
    """Target of the ratio."""
    direction: Direction
    """Whether the ratio should be below or above the target."""
    note: str = ""
    """Remark for the reader, such as substitute data."""
    difference: float | None = None
    """Largest relative difference between the results of both sides; None if not compared."""
    tolerance: float = 0.0
    """Largest difference that counts as rounding."""

    @property
    def reached(self) -> bool:
        """Whether the target was reached."""
        return (
            self.ratio <= self.target if self.direction == "at most" else self.ratio >= self.target
        )

    @property
    def equal(self) -> bool:
        """Whether both sides gave the same results, up to rounding."""
        return self.difference is None or self.difference <= self.tolerance


def make_row(
    group: str,
    name: str,
    *,
    ours: Sequence[float],
    theirs: Sequence[float] | None = None,
    target: float,
    direction: Direction = "at most",
    unit: str = "ms",
    against: str = "",
    note: str = "",
    difference: float | None = None,
    tolerance: float = 0.0,
) -> Row:
    """Returns the row of some rounds; ours and theirs are paired by round."""
    pairs = zip(ours, theirs, strict=True) if theirs is not None else ((own, 1.0) for own in ours)
    ratios = [own / other for own, other in pairs]
    return Row(
        group=group,
        name=name,
        against=against,
        unit=unit,
        ours=statistics.median(ours),
        theirs=None if theirs is None else statistics.median(theirs),
        ratio=statistics.median(ratios),
        spread=quartiles(ratios),
        target=target,
        direction=direction,
        note=note,
        difference=difference,
        tolerance=tolerance,
    )


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """Returns the lower and the upper quartile; both are the value if there is only one."""
    if len(values) == 1:
        return values[0], values[0]
    lower, _, upper = statistics.quantiles(values, n=4, method="inclusive")
    return lower, upper


def milliseconds(seconds: Iterable[float]) -> list[float]:
    """Returns seconds in milliseconds."""
    return [1000 * value for value in seconds]


def describe_machine() -> dict[str, Any]:
    """Returns the properties of the machine that the numbers depend on."""
    return {"processor": _processor_name(), "cores": os.cpu_count(), "system": platform.system()}


def write_rows(rows: Sequence[Row], path: Path, *, groups: Sequence[str]) -> None:
    """Writes rows to a file and keeps the rows of its other groups."""
    kept = [row for row in read_rows(path) if row.group not in groups] if path.exists() else []
    content = {"machine": describe_machine(), "rows": [asdict(row) for row in [*kept, *rows]]}
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".partial")
    temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    os.replace(temporary, path)


def read_rows(path: Path) -> list[Row]:
    """Returns the rows of a file."""
    content = json.loads(path.read_text(encoding="utf-8"))
    return [Row(**{**row, "spread": tuple(row["spread"])}) for row in content["rows"]]


def read_machine(path: Path) -> dict[str, Any]:
    """Returns the machine that a file's rows were measured on."""
    machine: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["machine"]
    return machine


def print_rows(rows: Sequence[Row], *, short: bool) -> None:
    """Prints the table; a short run shows differences, not times."""
    shown = ("what", "equal") if short else COLUMNS
    table = Table(*shown, title=rows[0].group, title_justify="left")
    for row in rows:
        cells = dict(zip(COLUMNS, format_cells(row), strict=True))
        table.add_row(*(cells[name] for name in shown))
    Console(width=160).print(table)


COLUMNS = ("what", "against", "ours", "theirs", "ratio", "spread", "reach", "reached", "equal")


def format_cells(row: Row) -> tuple[str, ...]:
    """Returns the cells of a row, in the order of COLUMNS."""
    low, high = row.spread
    what = f"{row.name} ({row.note})" if row.note else row.name
    return (
        what,
        row.against or "-",
        f"{row.ours:.3g} {row.unit}",
        "-" if row.theirs is None else f"{row.theirs:.3g} {row.unit}",
        f"{row.ratio:.3g}",
        f"{low:.3g} to {high:.3g}",
        f"{row.direction} {row.target:g}",
        "yes" if row.reached else "no",
        _say_equal(row),
    )


def _say_equal(row: Row) -> str:
    if row.difference is None:
        return "-"
    return f"{row.difference:.1g}" if row.equal else f"NO: {row.difference:.1g}"


def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
