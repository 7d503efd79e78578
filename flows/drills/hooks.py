"""Brings a drill's own code into the processes of a sweep, by Python's `sitecustomize`."""

import os
from pathlib import Path

from flows.drills.sweep import DrilledSweep
from tasks.sources import imported_tree

_PATH = f"{Path(__file__).with_name('hook')}{os.pathsep}{imported_tree()}"


def use_memory_hook(sweep: DrilledSweep) -> None:
    """Lets every process of the next start eat memory once it is told so."""
    sweep.environment.update(PYTHONPATH=_PATH, DML_DRILL_HOOK=str(sweep.folder))


def set_clock_back(sweep: DrilledSweep, *, seconds: int) -> None:
    """Gives every Python process of the next start a clock that was set back."""
    sweep.environment.update(PYTHONPATH=_PATH, DML_DRILL_CLOCK=str(seconds))
