"""dml drill: breaks real sweeps on purpose, and checks that nothing was lost."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from flows.commands.terminal import print_table, say
from flows.drills.plan import Drill, list_drills, make_drill
from flows.drills.registry import FAULTS
from flows.drills.runner import DrillGround, Outcome, drill_folder, run_drills


def run_drill(
    *,
    count: int,
    seed: int,
    faults: Sequence[str],
    only: Sequence[int],
    keep: Path | None,
    parallel: int,
    as_json: bool,
) -> None:
    """Runs drills and prints a line for each; ends with 1 when one failed.

    Args:
        count: how many.
        seed: what they are drawn from.
        faults: names of faults; none takes all.
        only: numbers of drills to repeat; none takes the first ones.
        keep: where failed drills leave their folders; None takes a temporary folder.
        parallel: how many run at a time.
        as_json: print lines of JSON.
    """
    drills = _choose(count, seed, faults, only)
    started = time.monotonic()
    with drill_folder(keep) as folder:
        _say("a sweep that nothing happens to comes first, to compare with", as_json)
        ground = DrillGround(folder)
        with ground.open():
            _say(f"undisturbed: {ground.run_undisturbed():.0f} s", as_json)
            printer = _Printer(len(drills), as_json=as_json)
            outcomes = run_drills(drills, ground, parallel=parallel, on_outcome=printer.tell)
    _print_end(outcomes, seconds=time.monotonic() - started, as_json=as_json)
    if any(outcome.result == "failed" for outcome in outcomes):
        raise SystemExit(1)


def _choose(count: int, seed: int, faults: Sequence[str], only: Sequence[int]) -> list[Drill]:
    if only:
        return [make_drill(seed, number, FAULTS) for number in only]
    return list_drills(seed, count=count, faults=FAULTS, wanted=faults)


class _Printer:
    """Prints each drill when it has ended."""

    def __init__(self, total: int, *, as_json: bool) -> None:
        self._total = total
        self._done = 0
        self._as_json = as_json

    def tell(self, outcome: Outcome) -> None:
        self._done += 1
        if self._as_json:
            print(json.dumps(to_plain(outcome)), flush=True)
        else:
            say(f"[{self._done}/{self._total}] {to_line(outcome)}")


def to_line(outcome: Outcome) -> str:
    """Returns a drill as a line for people; a failed one has more, and how to repeat it."""
    drill = outcome.drill
    head = f"{drill.number:3} {drill.fault} ({drill.moment})"
    if outcome.skipped:
        return f"{head}: skipped, {outcome.skipped}"
    if not outcome.problems:
        return f"{head}: {outcome.went_on}, {outcome.seconds:.0f} s, ok"
    listed = "".join(f"\n      - {problem}" for problem in outcome.problems[:10])
    return (
        f"{head}: FAILED after {outcome.seconds:.0f} s{listed}\n"
        f"      its folder: {outcome.folder}\n      again: {drill.command}"
    )


def to_plain(outcome: Outcome) -> dict[str, Any]:
    """Returns a drill as JSON-like values."""
    drill = outcome.drill
    return {
        "number": drill.number,
        "fault": drill.fault,
        "moment": {"ended": drill.moment.ended, "epoch": drill.moment.epoch},
        "result": outcome.result,
        "went_on": outcome.went_on,
        "seconds": round(outcome.seconds, 1),
        "problems": outcome.problems,
        "skipped": outcome.skipped,
        "folder": str(outcome.folder) if outcome.folder else "",
        "command": drill.command,
    }


def count_results(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Returns for each fault how many drills it had, and how many of them passed."""
    rows = []
    for fault in FAULTS:
        results = [o.result for o in outcomes if o.drill.fault == fault.name]
        if results:
            counts = {kind: results.count(kind) for kind in ("passed", "failed", "skipped")}
            rows.append({"fault": fault.name, "drills": len(results), **counts})
    return rows


def _print_end(outcomes: Sequence[Outcome], *, seconds: float, as_json: bool) -> None:
    rows = count_results(outcomes)
    passed = sum(row["passed"] for row in rows)
    if as_json:
        date = time.strftime("%Y-%m-%d", time.gmtime())
        end = {"date": date, "drills": len(outcomes), "passed": passed}
        end["seconds"] = round(seconds, 1)
        print(json.dumps({**end, "faults": rows}))
        return
    table = Table()
    for name in ("fault", "drills", "passed", "failed", "skipped"):
        table.add_column(name, justify="left" if name == "fault" else "right")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    print_table(table)
    say(f"{passed} of {len(outcomes)} drills passed, in {seconds:.0f} s")


def _say(text: str, as_json: bool) -> None:
    if not as_json:
        say(text)
