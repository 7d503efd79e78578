"""How a command of much code searches for garbage."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = """
import atexit, gc
# Called last, since what is registered first is called last.
atexit.register(lambda: print(gc.get_freeze_count() > 1000, flush=True))
from tasks.garbage import search_garbage_seldom

before = gc.get_threshold()[0]
search_garbage_seldom()
print(gc.isenabled(), gc.get_threshold()[0] > 10 * before, gc.get_freeze_count() == 0)
"""


def test_garbage_is_searched_seldom_and_at_the_end_not_at_all():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True"] * 4
