"""The outcome of drills as lines for people, as JSON lines, and as the table of docs/faults.md."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.drills.faults import FAULTS
from tests.drills.runner import Outcome

PAGE = Path("docs") / "faults.md"
RUNS = Path("docs") / "faults" / "drills.jsonl"
"""JSON lines of the drills that the page counts."""
SECTION = re.compile(r"(?<=<!-- drills -->\n).*(?=<!-- end -->)", flags=re.DOTALL)

Line = Mapping[str, Any]
"""A drill as JSON-like values."""


def to_text(outcome: Outcome) -> str:
    """Returns a drill as a line for people; a failed one has more lines, with its command."""
    drill = outcome.drill
    head = f"{drill.number:3} {drill.fault} ({drill.moment})"
    if outcome.skipped:
        return f"{head}: skipped, {outcome.skipped}"
    if not outcome.problems:
        return f"{head}: {outcome.recovery}, {outcome.seconds:.0f} s, ok"
    listed = "".join(f"\n      - {problem}" for problem in outcome.problems[:10])
    return (
        f"{head}: FAILED after {outcome.seconds:.0f} s{listed}\n"
        f"      folder: {outcome.folder}\n      repeat: {drill.command}"
    )


def to_line(outcome: Outcome) -> Line:
    """Returns a drill as JSON-like values."""
    drill = outcome.drill
    return {
        "seed": drill.seed,
        "number": drill.number,
        "fault": drill.fault,
        "moment": {"ended": drill.moment.ended, "epoch": drill.moment.epoch},
        "result": outcome.result,
        "recovery": outcome.recovery,
        "seconds": round(outcome.seconds, 1),
        "problems": outcome.problems,
        "skipped": outcome.skipped,
        "folder": str(outcome.folder) if outcome.folder else "",
    }


def read_lines(path: Path) -> list[Line]:
    """Returns the drills of a file of JSON lines."""
    return [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]


def render_table(drills: Sequence[Line]) -> str:
    """Returns a Markdown table: each fault with its number of drills, and how many passed."""
    rows = ["| fault | drills | passed |", "|---|---:|---:|"]
    for fault in FAULTS:
        if lines := [line for line in drills if line["fault"] == fault.name]:
            rows.append(_row(fault.name, lines))
    return "\n".join([*rows, _row("all", drills)]) + "\n"


def render_page(text: str, drills: Sequence[Line]) -> str:
    """Returns the page with the table of these drills."""
    return SECTION.sub(lambda _: render_table(drills), text)


def write_page() -> None:
    """Writes the table of docs/faults/drills.jsonl into docs/faults.md."""
    page = render_page(PAGE.read_text(encoding="utf-8"), read_lines(RUNS))
    PAGE.write_text(page, encoding="utf-8")


def _row(name: str, drills: Sequence[Line]) -> str:
    passed = sum(line["result"] == "passed" for line in drills)
    return f"| {name} | {len(drills)} | {passed} |"
