"""docs/faults.md tells of every fault, and its counts are those of the run beside it."""

import json
import re
from pathlib import Path

from flows.drills.plan import make_drill
from flows.drills.registry import FAULTS

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
LINES = (ROOT / "docs" / "faults" / "drills.jsonl").read_text(encoding="utf-8").splitlines()
DRILLS = [json.loads(line) for line in LINES[:-1]]
END = json.loads(LINES[-1])


def test_every_fault_is_on_the_page_and_no_other():
    named = re.findall(r"^\| `([\w-]+)` \| .+ \| .+ \|$", PAGE, flags=re.MULTILINE)
    assert named == [fault.name for fault in FAULTS]


def test_the_table_of_drills_is_that_of_the_run():
    table = PAGE.split("<!-- drills -->")[1].split("<!-- end -->")[0]
    rows = re.findall(r"^\| ([\w-]+) \| (\d+) \| (\d+) \|$", table, flags=re.MULTILINE)
    counted = [(row["fault"], str(row["drills"]), str(row["passed"])) for row in END["faults"]]
    assert rows == [*counted, ("all", str(END["drills"]), str(END["passed"]))]
    assert END["date"] in table


def test_the_run_is_of_the_drills_that_its_seed_means():
    assert len(DRILLS) == END["drills"]
    assert sorted(drill["number"] for drill in DRILLS) == list(range(1, END["drills"] + 1))
    for line in DRILLS:
        drill = make_drill(0, line["number"], FAULTS)
        assert (drill.fault, drill.command) == (line["fault"], line["command"])
    passed = sum(drill["result"] == "passed" for drill in DRILLS)
    assert passed == END["passed"] == sum(row["passed"] for row in END["faults"])


def test_every_named_test_exists():
    for name in re.findall(r"`(tests/[\w/]+\.py)`", PAGE):
        assert (ROOT / name).is_file(), name
