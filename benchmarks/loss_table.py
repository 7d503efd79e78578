"""The table of losses in README.md, rendered from the scores in docs/findings/."""

from pathlib import Path

from dml_core.analysis.estimates import estimate_mean
from dml_core.measures.results import read_scores

METRIC = "recall_at_1"
RUNS = {
    "glyphs, 128 dimensions": ("loss_comparison", 128),
    "Cars-196, 512 dimensions": ("loss_comparison@cars", 512),
}
"""By column, the run and the length of its embeddings."""


def render_losses(folder: Path) -> str:
    """Returns a row for each loss, the best one on the embedded data first."""
    scores = {run: read_scores(folder / run).scores for run, _ in RUNS.values()}
    first, length = next(iter(RUNS.values()))
    rows = []
    for arm, by_seed in scores[first].items():
        loss, _, found = arm.rpartition("-")
        if found != str(length):
            continue
        cells = [_show(scores[run].get(f"{loss}-{size}")) for run, size in RUNS.values()]
        rows.append((-_mean(by_seed), loss, cells))
    lines = [f"| `{loss}` | {' | '.join(cells)} |" for _, loss, cells in sorted(rows)]
    head = [f"| loss | {' | '.join(RUNS)} |", f"|---|{'---:|' * len(RUNS)}"]
    return "\n".join([*head, *lines])


def _mean(by_seed: dict[int, dict[str, float]]) -> float:
    return float(estimate_mean([numbers[METRIC] for numbers in by_seed.values()]).mean)


def _show(by_seed: dict[int, dict[str, float]] | None) -> str:
    if by_seed is None:
        return "-"
    found = estimate_mean([numbers[METRIC] for numbers in by_seed.values()])
    half = 100 * (float(found.high) - float(found.low)) / 2
    return f"{100 * float(found.mean):.1f} ± {half:.1f}"
