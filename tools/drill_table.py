"""Writes the counts of docs/faults/drills.jsonl into docs/faults.md."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.drills.registry import FAULTS

PAGE = Path("docs") / "faults.md"
RUNS = Path("docs") / "faults" / "drills.jsonl"
"""Lines of `dml drill --json`; that of the whole run at their end is not needed."""
SECTION = re.compile(r"(?<=<!-- drills -->\n).*(?=<!-- end -->)", flags=re.DOTALL)

Line = Mapping[str, Any]


def read_drills(path: Path) -> list[Line]:
    """Returns the drills of a file, without the line about all of them."""
    lines = [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if "number" in line]


def render_table(drills: Sequence[Line]) -> str:
    """Returns for each fault that had drills how many, and how many of them passed."""
    rows = ["| fault | drills | passed |", "|---|---:|---:|"]
    for fault in FAULTS:
        if lines := [line for line in drills if line["fault"] == fault.name]:
            rows.append(_row(fault.name, lines))
    return "\n".join([*rows, _row("all", drills)]) + "\n"


def render_page(text: str, drills: Sequence[Line]) -> str:
    """Returns the page with the table of these drills."""
    return SECTION.sub(lambda _: render_table(drills), text)


def _row(name: str, drills: Sequence[Line]) -> str:
    passed = sum(line["result"] == "passed" for line in drills)
    return f"| {name} | {len(drills)} | {passed} |"


if __name__ == "__main__":
    PAGE.write_text(
        render_page(PAGE.read_text(encoding="utf-8"), read_drills(RUNS)), encoding="utf-8"
    )
