"""docs/faults.md lists every fault, and its counts are those of docs/faults/drills.jsonl."""

import ast
import re
from pathlib import Path

from tests.drills import test_faults
from tests.drills.faults import FAULTS
from tests.drills.plan import make_drill
from tests.drills.report import PAGE, RUNS, read_lines, render_page, render_table

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / PAGE).read_text(encoding="utf-8")
DRILLS = read_lines(ROOT / RUNS)


def test_every_fault_is_on_the_page_and_no_other():
    named = re.findall(r"^\| `([\w-]+)` \| .+ \| .+ \|$", TEXT, flags=re.MULTILINE)
    assert named == [fault.name for fault in FAULTS]


def test_the_counts_are_those_of_the_drills():
    assert render_table(DRILLS) in TEXT
    assert render_page(TEXT, DRILLS) == TEXT


def test_another_drill_or_a_failed_one_changes_the_page():
    failed = {**DRILLS[0], "result": "failed"}
    for other in ([*DRILLS, DRILLS[0]], [failed, *DRILLS[1:]]):
        assert render_page(TEXT, other) != TEXT


def test_each_drill_belongs_to_its_seed_and_is_listed_once():
    numbers = [line["number"] for line in DRILLS]
    assert len(set(numbers)) == len(numbers)
    assert f"{len(numbers)} of the 100" in TEXT
    # Faults that were added later are not part of the plan that was counted.
    counted = [fault for fault in FAULTS if fault.name in {line["fault"] for line in DRILLS}]
    for line in DRILLS:
        drill = make_drill(line["seed"], line["number"], counted)
        assert drill.fault == line["fault"]
        assert (drill.moment.ended, drill.moment.epoch) == tuple(line["moment"].values())


def test_a_fault_without_recorded_drills_has_no_row():
    one = DRILLS[0]
    assert render_table([one]).splitlines()[2:] == [
        f"| {one['fault']} | 1 | 1 |",
        "| all | 1 | 1 |",
    ]


def list_tests(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_named_test_exists():
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", TEXT)
    assert named
    missing = [
        f"{file}::{test}"
        for file, test in named
        if not (ROOT / file).is_file() or (test and test not in list_tests(ROOT / file))
    ]
    assert missing == []


def test_the_numbers_of_faults_that_the_tests_run_are_those_of_the_tests():
    (marked,) = [mark for mark in test_faults.test_nothing_is_lost.pytestmark if mark.args]
    cases = marked.args[1]
    nightly = [case for case in cases if getattr(case, "marks", ())]
    counts = len(cases) - len(nightly), len(FAULTS), len(nightly)
    words = {2: "two", 10: "ten", 20: "twenty"}
    always, all_faults, more = (words[count] for count in counts)
    text = " ".join(TEXT.split())
    assert f"runs {always} of the {all_faults} faults with `make test` and {more} more with" in text
