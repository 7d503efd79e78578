"""Writes the answer of a study as a Markdown table."""

from collections.abc import Sequence

from dml_core.statistics.summary import ArmSummary, Interval

_NOTES = (
    "Mean over seeds with its 95 % interval (Student's t){unit}. Differences are paired by seed; "
    "their intervals are those of each comparison alone. A verdict is given only where the "
    "difference stands among all {count} comparisons of the study (paired t-test, Holm's "
    "correction): a study without any true difference gives a verdict in at most 5 % of cases."
)


def render_markdown(summaries: Sequence[ArmSummary], *, metric: str, is_share: bool = True) -> str:
    """Returns one line for each arm in the given order, with a note on how to read them.

    Args:
        summaries: what `summarize` gave.
        metric: name of the score, for the heading of its column.
        is_share: whether scores go from 0 to 1 and are shown in points; False for distances.
    """
    differences = [s.difference for s in summaries if s.difference is not None]
    count = sum(difference.p_value is not None for difference in differences)
    references = list(dict.fromkeys(difference.reference for difference in differences))
    heading = f"difference to {references[0]}" if len(references) == 1 else "difference"
    lines = [
        f"| arm | seeds | {_escape(metric)} | {_escape(heading)} | verdict |",
        "|---|---:|---:|---:|---|",
        *(_render_row(s, is_share=is_share, names=len(references) > 1) for s in summaries),
    ]
    unit = ", in points (1 point = 0.01)" if is_share else ""
    return "\n".join([*lines, "", _NOTES.format(unit=unit, count=count), ""])


def _render_row(summary: ArmSummary, *, is_share: bool, names: bool) -> str:
    difference = summary.difference
    change = ""
    if difference is not None:
        change = _render_estimate(difference.mean, difference.interval, is_share, sign="+")
        change += f" to {difference.reference}" if names else ""
    cells = [
        summary.arm,
        str(summary.num_seeds),
        _render_estimate(summary.mean, summary.interval, is_share, sign=""),
        change,
        summary.text,
    ]
    return f"| {' | '.join(map(_escape, cells))} |"


def _render_estimate(
    mean: float | None, interval: Interval | None, is_share: bool, *, sign: str
) -> str:
    if mean is None:
        return "none"

    def show(value: float) -> str:
        return f"{100 * value:{sign}.2f}" if is_share else f"{value:{sign}.4f}"

    if interval is None:
        return f"{show(mean)} (no interval)"
    return f"{show(mean)} [{show(interval[0])}, {show(interval[1])}]"


def _escape(text: str) -> str:
    return text.replace("|", "\\|")
