"""Two commands at once, and a clock that was set back."""

import signal

from flows.drills.fault import DrillFailed, Fault
from flows.drills.faults.signals import hit_driver
from flows.drills.hooks import set_clock_back
from flows.drills.scene import Scene
from flows.drills.sweep import PATIENCE_SECONDS

REFUSED = 2
"""What `dml` ends with where the user can mend something."""


SET_BACK_SECONDS = (60, 3600, 24 * 3600, 30 * 24 * 3600)


def _start_twice(scene: Scene) -> str:
    scene.sweep.start()
    scene.reach_moment()
    output = scene.folder / "printed-second.txt"
    # On a slow machine the first one would be done before the second one is there.
    with scene.sweep.held_workers():
        second = scene.sweep.launch(output)
        try:
            code = second.wait(timeout=PATIENCE_SECONDS)
        finally:
            second.kill()
            second.wait()
    said = output.read_text(encoding="utf-8", errors="replace")
    if code != REFUSED or f"is in use by process {scene.sweep.pid}" not in said:
        raise DrillFailed(f"the second command ended with {code} and said: {said[-500:]}")
    return f"{scene.finish()}; the second command was refused"


def _set_clock_back(scene: Scene) -> str:
    hit_driver(scene, signal.SIGKILL, code=-signal.SIGKILL)
    seconds = scene.chance.choice(SET_BACK_SECONDS)
    set_clock_back(scene.sweep, seconds=seconds)
    return f"{scene.resume()}, {seconds} s earlier"


TWO_AT_ONCE = Fault(
    "two-at-once", "the same command is given while it runs", _start_twice, trials_at_once=1
)
CLOCK_SET_BACK = Fault(
    "clock-set-back",
    "kill -9 of the command, and the clock is set back",
    _set_clock_back,
    trials_at_once=1,
    # What was up before has the right time; its own servers are set back with the command.
    stands_alone=True,
)
