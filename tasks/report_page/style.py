"""The one look of all figures: colours, markers, line styles, sizes."""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Okabe and Ito's colours, told apart also by colour-blind people; their yellow is too pale for
# lines on white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#3B3B3B")
# Markers, lines and hatches say the same as the colours, for prints in grey.
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
        # Names from data may hold letters that no face at hand has: they become boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield plt
        plt.close("all")


def line_style(number: int) -> dict[str, Any]:
    """Returns colour, marker and line of the n-th series; no two of 56 are alike."""
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
    """Returns a text that matplotlib draws as it stands: a dollar sign begins no formula."""
    printable = "".join(c if c.isprintable() else "?" for c in text)
    return re.sub(r"\$", r"\\$", printable)
