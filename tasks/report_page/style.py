"""The one look of all reports: colours, markers, and names of metrics with their units."""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dml_core.studies.metrics import Unit
from dml_core.studies.metrics import unit_of as find_unit

# Okabe and Ito's palette, which colour-blind people can distinguish, without its yellow, which is
# too pale for lines on white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#3B3B3B")
# Markers, lines and hatches repeat the information of the colours, for prints in grey.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
HATCHES = ("", "...", "\\\\\\", "xxx", "---", "ooo", "+++")
INK = "#1c1c1c"
MUTED = "#6b6b6b"
MISSING = "#b4b4b4"
PAPER = "#ffffff"
PUBLISHED_PAPER = "#f1f1ee"
NO_SCORE = "no score"
COLOR_MAP = "viridis"

_SETTINGS: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#dcdcdc",
    "grid.linewidth": 0.7,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "hatch.linewidth": 0.5,
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "savefig.dpi": 160,
    # Equal numbers give equal files.
    "svg.hashsalt": "dml",
}


@contextmanager
def report_style() -> Iterator[Any]:
    """Yields pyplot without a display, in the look of the reports."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    with warnings.catch_warnings(), mpl.rc_context(_SETTINGS):
        # Names from data may contain letters that no installed font has: these become boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield plt
        plt.close("all")


def line_style(number: int) -> dict[str, Any]:
    """Returns colour, marker and line of the n-th series; 56 series are distinct."""
    return {
        "color": COLORS[number % len(COLORS)],
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": LINES[number % len(LINES)],
    }


def bar_style(number: int) -> dict[str, Any]:
    """Returns colour and hatch of the n-th series of bars."""
    return {
        "facecolor": COLORS[number % len(COLORS)],
        "hatch": HATCHES[number % len(HATCHES)],
        "edgecolor": PAPER,
        "linewidth": 0,
    }


def plain(text: str) -> str:
    """Returns a text that matplotlib draws literally: a dollar sign starts no formula."""
    printable = "".join(c if c.isprintable() else "?" for c in text)
    return re.sub(r"\$", r"\\$", printable)


def plain_lines(text: str) -> str:
    """Returns a text of several lines that matplotlib draws literally."""
    return "\n".join(plain(line) for line in text.splitlines())


PUBLISHED = "published"
"""Pseudo-metric of published scores."""
_PUBLISHED_UNIT = Unit(1, "", "", 1)
_LOGGED = "logged"
"""Prefix of metrics that other code has logged, before the number of their digits."""

_NAMES = {
    "map_at_r": "MAP@R",
    "r_precision": "R-precision",
    "nmi": "NMI",
    "pair_f1": "F1",
    "cost.step_seconds": "time of a training step",
    "cost.memory_mib": "peak memory",
    "cost.trained_parameters": "trained parameters",
    "gradient.positive": "gradient size, positive pairs",
    "gradient.negative": "gradient size, negative pairs",
    "train.loss": "training loss",
    "train.active_fraction": "active share of the loss",
    "table.hardest_distances": "hardest distance",
}
_PATTERNS = (
    (r"^recall_at_(.+)$", r"R@\1"),
    (r"^ndcg_at_(.+)$", r"nDCG@\1"),
    (r"^search\.(.+)_recall_at_1$", r"R@1 of \1 search"),
    (r"^search\.(.+)_bytes$", r"bytes of an image, \1"),
    (r"^search\.(.+)_queries_per_second$", r"queries a second, \1"),
    (r"^fnmr_at_fmr_(.+)$", r"FNMR at FMR \1"),
    (r"^threshold_at_fmr_(.+)$", r"threshold at FMR \1"),
    (r"^mean_label_distance_at_(.+)$", r"label distance@\1"),
)
_AXES = {
    "arm": "",
    "epoch": "epoch",
    "seconds": "training time (s)",
    "hardness": "hardness of the sample",
}
_STARS = {
    "occluded_": "hidden share of the side",
    "corrupted_": "severity",
    "_at_fmr_": "false match rate (FMR)",
}
"""What the star of a metric stands for, by a part of the metric's name; otherwise K."""
_SPLITS = {"test": "test classes", "validation": "validation classes"}


def mark_logged(metric: str, unit: Unit) -> str:
    """Returns the name under which a metric of other code is drawn: as plain numbers."""
    return f"{_LOGGED}.{unit.digits}.{metric}"


def spell_metric(metric: str) -> str:
    """Returns a metric's own name for sentences and messages: `test.recall_at_1` is recall_at_1."""
    if metric.startswith(f"{_LOGGED}."):
        return metric.split(".", 2)[2]
    return metric.removeprefix("test.")


def name_metric(metric: str) -> str:
    """Returns a metric's short name without its split: `test.recall_at_1` is R@1."""
    if metric in _NAMES:
        return _NAMES[metric]
    split, _, name = metric.partition(".")
    if split == _LOGGED:
        return spell_metric(metric)
    if split == "train":
        return f"{name.replace('_', ' ')} in training"
    return _name_score(name if split in (*_SPLITS, "table") else metric)


def _name_score(name: str) -> str:
    if name.startswith("binary_"):
        return f"{_name_score(name.removeprefix('binary_'))} of binary codes"
    if cut := re.match(r"^dim([\d*]+)_(.+)$", name):
        length = "prefixes" if cut[1] == "*" else f"the first {cut[1]} dimensions"
        return f"{_name_score(cut[2])} of {length}"
    hidden = re.match(r"^occluded_(center|boundary)_([^_]+)_(.+)$", name)
    if hidden:
        place = {"center": "centre", "boundary": "border"}[hidden[1]]
        size = "" if hidden[2] == "*" else f" {hidden[2]}"
        return f"{_name_score(hidden[3])}, {place} hidden{size}"
    corrupted = re.match(r"^corrupted_([a-z]+)_([^_]+)_(.+)$", name)
    if corrupted:
        severity = "" if corrupted[2] == "*" else f" {corrupted[2]}"
        return f"{_name_score(corrupted[3])}, {corrupted[1]}{severity}"
    for pattern, short in _PATTERNS:
        if re.match(pattern, name):
            return re.sub(pattern, short, name).replace("@*", "@K").removesuffix(" at FMR *")
    return _NAMES.get(name, name.replace("_", " "))


def unit_of(metric: str) -> Unit:
    """Returns a metric's unit; published scores are shown as printed."""
    if metric.startswith(f"{_LOGGED}."):
        return Unit(1, "", "", int(metric.split(".")[1]))
    return _PUBLISHED_UNIT if metric == PUBLISHED else find_unit(metric)


def label_metric(metric: str) -> str:
    """Returns the label of an axis: name, split, unit."""
    where = _SPLITS.get(metric.partition(".")[0], "")
    return with_unit(", ".join(filter(None, (name_metric(metric), where))), metric)


def label_together(metrics: tuple[str, ...]) -> str:
    """Returns the label of an axis that several metrics of one unit share."""
    if len(metrics) == 1:
        return label_metric(metrics[0])
    # The part before the first comma or "of" is the metrics' common name, if they have one.
    heads = {re.split(r", | of ", name_metric(metric))[0] for metric in metrics}
    places = dict.fromkeys(_SPLITS.get(metric.partition(".")[0], "") for metric in metrics)
    name = heads.pop() if len(heads) == 1 else "score"
    return with_unit(", ".join(filter(None, (name, *places))), metrics[0])


def with_unit(text: str, metric: str) -> str:
    """Returns a label with its unit in brackets, unless it already contains it."""
    unit = unit_of(metric).name.strip()
    return text if not unit or unit in text else f"{text} ({unit})"


def label_axis(key: str, metrics: tuple[str, ...] = ()) -> str:
    """Returns the label of the x axis for a figure's x."""
    if key == "*":
        named = "".join(metrics)
        return next((label for part, label in _STARS.items() if part in named), "K")
    return _AXES.get(key, key)


def show_value(value: Any) -> str:
    """Returns a key's value as text for readers."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    return "none" if value is None else str(value)


def show_number(value: float | None, metric: str, *, is_difference: bool = False) -> str:
    """Returns a number in the metric's unit, without the unit; empty for None."""
    if value is None:
        return ""
    unit = unit_of(metric)
    return unit.show_difference(value) if is_difference else unit.show(value)
