"""Signals to the command that leads a sweep."""

import signal

from flows.drills.checks import list_temporary
from flows.drills.fault import DrillFailed, Fault
from flows.drills.records import read_record
from flows.drills.scene import Scene

GOES_ON = "dml: interrupted. The same command goes on where it stopped.\n"


def hit_driver(scene: Scene, number: signal.Signals, *, code: int) -> None:
    """Lets a sweep come to its moment, ends its command, and checks what that leaves."""
    scene.sweep.start()
    scene.reach_moment()
    if (found := scene.sweep.hit(number)) != code:
        raise DrillFailed(f"it ended with {found} for {code}: {scene.sweep.last_words()}")
    scene.check_processes_gone()
    scene.check(*list_temporary(scene.sweep.temporary))


def _stop_politely(scene: Scene, number: signal.Signals) -> str:
    hit_driver(scene, number, code=128 + number)
    if not scene.sweep.printed.endswith(GOES_ON) or "Traceback" in scene.sweep.printed:
        raise DrillFailed(f"it did not say how to go on: {scene.sweep.last_words()}")
    if any(status == "RUNNING" for _, status, _ in read_record(scene.folder)):
        raise DrillFailed("MLflow has a run left RUNNING by a command that was stopped")
    return scene.resume()


def _kill(scene: Scene) -> str:
    hit_driver(scene, signal.SIGKILL, code=-signal.SIGKILL)
    return scene.resume()


DRIVER_KILLED = Fault("driver-killed", "kill -9 of the command", _kill, stands_alone=True)
SIGTERM = Fault(
    "sigterm",
    "SIGTERM to the command",
    lambda scene: _stop_politely(scene, signal.SIGTERM),
    stands_alone=True,
)
CTRL_C = Fault(
    "ctrl-c",
    "Ctrl-C in the command's terminal",
    lambda scene: _stop_politely(scene, signal.SIGINT),
    stands_alone=True,
)
