"""The table of losses in README.md, rendered from the scores in docs/findings/."""

from pathlib import Path

from dml_core.analysis.estimates import estimate_mean
from dml_core.measures.results import read_scores

LENGTHS = (64, 128, 512)
METRIC = "recall_at_1"
COLUMNS = ("loss", *(f"glyphs, {length}" for length in LENGTHS), "Cars-196, 512")


def render_losses(folder: Path) -> str:
    """Returns a row for each loss, best first at the longest embedding."""
    glyphs = read_scores(folder / "loss_comparison").scores
    cars = read_scores(folder / "loss_comparison@cars").scores
    rows = []
    for loss in {arm.rpartition("-")[0] for arm in glyphs}:
        cells = [_show(glyphs.get(f"{loss}-{length}")) for length in LENGTHS]
        cells.append(_show(cars.get(f"{loss}-{LENGTHS[-1]}")))
        rows.append((-_mean(glyphs[f"{loss}-{LENGTHS[-1]}"]), loss, cells))
    lines = [f"| `{loss}` | {' | '.join(cells)} |" for _, loss, cells in sorted(rows)]
    head = [f"| {' | '.join(COLUMNS)} |", f"|---|{'---:|' * (len(COLUMNS) - 1)}"]
    return "\n".join([*head, *lines])


def _mean(by_seed: dict[int, dict[str, float]]) -> float:
    return float(estimate_mean([numbers[METRIC] for numbers in by_seed.values()]).mean)


def _show(by_seed: dict[int, dict[str, float]] | None) -> str:
    if by_seed is None:
        return "-"
    found = estimate_mean([numbers[METRIC] for numbers in by_seed.values()])
    half = 100 * (float(found.high) - float(found.low)) / 2
    return f"{100 * float(found.mean):.1f} ± {half:.1f}"
