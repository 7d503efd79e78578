"""Writes the table of docs/performance.md from the results of a run."""

import re
from pathlib import Path

from benchmarks.rows import COLUMNS, Row, format_cells, read_machine, read_rows

TABLE = re.compile(r"<!-- table -->\n.*?<!-- end -->", re.DOTALL)


def render_file(page: Path, source: Path) -> None:
    """Replaces the table of the page by the rows of a file."""
    page.write_text(render_page(page.read_text(encoding="utf-8"), source), encoding="utf-8")


def render_page(text: str, source: Path) -> str:
    """Returns the text of the page with the rows of a file between the two marks."""
    if TABLE.search(text) is None:
        raise ValueError(
            "the page must have the lines '<!-- table -->' and '<!-- end -->', between which the "
            "table goes. Got none. Add them."
        )
    return TABLE.sub(lambda _: f"<!-- table -->\n{render_table(source)}\n<!-- end -->", text)


def render_table(source: Path) -> str:
    """Returns the machine's description and a table for each group, as Markdown."""
    rows, machine = read_rows(source), read_machine(source)
    if not rows:
        return "No results yet."
    facts = f"{machine['processor']}, {machine['cores']} cores, {machine['system']}"
    parts = [f"Measured on: {facts}. {_count_reached(rows)}"]
    for group in dict.fromkeys(row.group for row in rows):
        parts.append(f"### {group}\n\n" + _render_group([r for r in rows if r.group == group]))
    return "\n\n".join(parts)


def _count_reached(rows: list[Row]) -> str:
    return f"{sum(row.reached for row in rows)} of {len(rows)} rows reach their target."


def _render_group(rows: list[Row]) -> str:
    head = [f"| {' | '.join(COLUMNS)} |", f"|---|---|{'---:|' * (len(COLUMNS) - 2)}"]
    return "\n".join([*head, *(f"| {' | '.join(format_cells(row))} |" for row in rows)])
