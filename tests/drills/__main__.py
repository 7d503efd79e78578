"""python -m tests.drills: breaks real sweeps on purpose, and checks that nothing is lost.

`make drill` calls it. `python -m tests.drills --page` writes the table of docs/faults.md.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.drills.faults import FAULTS
from tests.drills.plan import Drill, list_drills, make_drill
from tests.drills.report import render_table, to_line, to_text, write_page
from tests.drills.runner import DrillGround, Outcome, drill_folder, run_drills


def main(arguments: Sequence[str]) -> int:
    """Runs drills and prints a line for each; returns 1 if one failed."""
    options = _parse(arguments)
    if options.page:
        write_page()
        return 0
    drills = _choose(options)
    started, output = time.monotonic(), options.output
    if output is not None:
        # A path that cannot be written ends the command now, not after an hour.
        output.touch()
    with drill_folder() as folder:
        print("an undisturbed sweep runs first, as the reference", flush=True)
        ground = DrillGround(folder)
        with ground.open():
            print(f"undisturbed: {ground.run_undisturbed():.0f} s", flush=True)
            outcomes = run_drills(
                drills, ground, parallel=options.parallel, on_outcome=_Printer(len(drills), output)
            )
    print(render_table([to_line(outcome) for outcome in outcomes]))
    passed = sum(outcome.result == "passed" for outcome in outcomes)
    seconds = time.monotonic() - started
    print(f"{passed} of {len(outcomes)} drills passed, in {seconds:.0f} s")
    return int(any(outcome.result == "failed" for outcome in outcomes))


class _Printer:
    """Prints each drill at its end, and appends it to a file."""

    def __init__(self, total: int, output: Path | None) -> None:
        self._total = total
        self._done = 0
        self._output = output

    def __call__(self, outcome: Outcome) -> None:
        self._done += 1
        print(f"[{self._done}/{self._total}] {to_text(outcome)}", flush=True)
        if self._output is not None:
            with open(self._output, "a", encoding="utf-8") as file:
                file.write(json.dumps(to_line(outcome)) + "\n")


def _choose(options: argparse.Namespace) -> list[Drill]:
    if options.only:
        return [make_drill(options.seed, number, FAULTS) for number in options.only]
    return list_drills(options.seed, count=options.count, faults=FAULTS, wanted=options.fault)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.drills",
        description="Break small sweeps in a temporary folder, and check that nothing is lost.",
    )
    parser.add_argument("--count", type=_at_least(1), default=10, help="number of drills")
    parser.add_argument("--seed", type=_at_least(0), default=0, help="seed of faults and moments")
    parser.add_argument("--fault", nargs="+", default=[], help="run these faults only")
    parser.add_argument("--only", nargs="+", type=_at_least(1), default=[], help="repeat drills")
    parser.add_argument("--parallel", type=_at_least(1), default=1, help="concurrent drills")
    parser.add_argument("--output", type=Path, help="file that gets a JSON line for each drill")
    parser.add_argument("--page", action="store_true", help="write the table of docs/faults.md")
    return parser.parse_args(arguments)


def _at_least(minimum: int):
    def parse(text: str) -> int:
        if (value := int(text)) < minimum:
            raise argparse.ArgumentTypeError(f"must be >= {minimum}. Got {value}.")
        return value

    return parse


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ValueError as error:
        sys.exit(f"drill: {error}")
