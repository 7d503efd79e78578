"""Faults of the command: signals, a second command, and a clock that is set back."""

import os
import signal
from pathlib import Path

from tasks.sources import imported_tree
from tests.drills.checks import list_temporary, read_runs
from tests.drills.messages import INTERRUPTED, SECOND_COMMAND
from tests.drills.plan import DrillFailed, Fault
from tests.drills.scene import Scene
from tests.drills.sweep import PATIENCE_SECONDS, DrilledSweep

REFUSED = 2
"""Exit code of `dml` for a problem that its user can fix."""
SET_BACK_SECONDS = (60, 3600, 24 * 3600, 30 * 24 * 3600)
_HOOK = Path(__file__).parents[1] / "hook"


def add_hook(sweep: DrilledSweep, **variables: str) -> None:
    """Loads hook/sitecustomize.py into every Python process of the next start.

    Args:
        sweep: the sweep.
        variables: environment variables that the hook reads.
    """
    path = f"{_HOOK}{os.pathsep}{imported_tree()}"
    sweep.environment.update(PYTHONPATH=path, **variables)


def stop_driver(scene: Scene, number: signal.Signals, *, code: int) -> None:
    """Starts a sweep, sends its command a signal at the moment, and checks what is left.

    Args:
        scene: the scene.
        number: the signal.
        code: exit code that the command must end with.
    """
    scene.sweep.start()
    scene.reach_moment()
    if (found := scene.sweep.send_signal(number)) != code:
        raise DrillFailed(f"the command ended with {found}, not {code}: {scene.sweep.last_words()}")
    scene.check_processes_gone()
    scene.check(*list_temporary(scene.sweep.temporary))


def kill_driver(scene: Scene) -> None:
    """Starts a sweep and kills its command at the moment with SIGKILL."""
    stop_driver(scene, signal.SIGKILL, code=-signal.SIGKILL)


def _interrupt(scene: Scene, number: signal.Signals) -> str:
    stop_driver(scene, number, code=128 + number)
    printed = scene.sweep.printed
    if not printed.splitlines()[-1].startswith(INTERRUPTED) or "Traceback" in printed:
        raise DrillFailed(f"the command did not say how to resume: {scene.sweep.last_words()}")
    if any(status == "RUNNING" for _, status, _ in read_runs(scene.folder)):
        raise DrillFailed("an interrupted command left a run RUNNING in MLflow")
    return scene.resume()


def _kill(scene: Scene) -> str:
    kill_driver(scene)
    return scene.resume()


def _start_twice(scene: Scene) -> str:
    scene.sweep.start()
    scene.reach_moment()
    output = scene.folder / "printed-second.txt"
    # On a slow machine the first command could end before the second one is up.
    with scene.sweep.suspended_workers():
        second = scene.sweep.launch(output)
        try:
            code = second.wait(timeout=PATIENCE_SECONDS)
        finally:
            second.kill()
            second.wait()
    printed = output.read_text(encoding="utf-8", errors="replace")
    if code != REFUSED or f"{SECOND_COMMAND}process {scene.sweep.pid}" not in printed:
        raise DrillFailed(f"the second command ended with {code} and printed: {printed[-500:]}")
    return f"{scene.finish()}; the second command was refused"


def _set_clock_back(scene: Scene) -> str:
    kill_driver(scene)
    seconds = scene.choices.choice(SET_BACK_SECONDS)
    add_hook(scene.sweep, DML_DRILL_CLOCK=str(seconds))
    return f"{scene.resume()}, {seconds} s earlier"


DRIVER_KILLED = Fault("driver-killed", "kill -9 of the command", _kill, starts_servers=True)
SIGTERM = Fault(
    "sigterm",
    "SIGTERM to the command",
    lambda scene: _interrupt(scene, signal.SIGTERM),
    starts_servers=True,
)
CTRL_C = Fault(
    "ctrl-c",
    "Ctrl-C in the command's terminal",
    lambda scene: _interrupt(scene, signal.SIGINT),
    starts_servers=True,
)
TWO_AT_ONCE = Fault(
    "two-at-once", "the same command is started while it runs", _start_twice, trials_at_once=1
)
CLOCK_SET_BACK = Fault(
    "clock-set-back",
    "kill -9 of the command, and the clock is set back",
    _set_clock_back,
    trials_at_once=1,
    # Servers that are up have the right time; the command's own get the wrong one.
    starts_servers=True,
)
