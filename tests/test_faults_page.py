"""docs/faults.md tells of every fault, and of tests that there are."""

import re
from pathlib import Path

from flows.drills.registry import FAULTS

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")


def test_every_fault_is_on_the_page_and_no_other():
    named = re.findall(r"^\| `([\w-]+)` \| .+ \| .+ \|$", PAGE, flags=re.MULTILINE)
    assert named == [fault.name for fault in FAULTS]


def test_every_named_test_exists():
    for name in re.findall(r"`(tests/[\w/]+\.py)`", PAGE):
        assert (ROOT / name).is_file(), name
