"""Runs drills, each in a fresh copy of the project, one after the other or concurrently."""

import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from tests.drills.checks import check_results, count_starts, list_temporary
from tests.drills.faults import find_fault
from tests.drills.plan import Drill, DrillFailed
from tests.drills.project import copy_project, make_project
from tests.drills.scene import GRACE_SECONDS, Scene
from tests.drills.servers import SharedServers
from tests.drills.sweep import DrilledSweep
from tests.references.empty_databases import make_databases

MAX_STARTS = 1 + 3
"""Most starts of a trial: the first, and the restarts that sweep.max_restarts allows."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a drill."""

    drill: Drill
    seconds: float
    recovery: str = ""
    """How the sweep came to its end."""
    problems: list[str] = field(default_factory=list)
    """Every broken promise."""
    skipped: str = ""
    """Why this machine cannot run it; empty where it ran."""
    folder: Path | None = None
    """The folder that a failed drill leaves."""

    @property
    def result(self) -> str:
        """One of passed, failed, skipped."""
        if self.skipped:
            return "skipped"
        return "failed" if self.problems else "passed"


class DrillGround:
    """The project of the drills, and its undisturbed sweep, the reference of all checks."""

    def __init__(self, folder: Path, *, databases: Path | None = None) -> None:
        """Creates the project.

        Args:
            folder: folder for the project and for each drill.
            databases: from `make_databases`; None creates them.
        """
        self.folder = folder
        self.is_over = threading.Event()
        """Ends the running drills once it is set."""
        self.undisturbed = folder / "undisturbed"
        databases = databases or make_databases(folder / "databases")
        self._project = make_project(folder / "project", databases=databases)
        self._servers = SharedServers(folder / "servers", project=self._project)

    @contextmanager
    def open(self) -> Iterator[None]:
        """Keeps the shared servers up within the block."""
        with self._servers.running():
            yield

    def run_undisturbed(self) -> float:
        """Runs the sweep without a fault; returns how many seconds it took.

        Raises:
            DrillFailed: if it fails, or leaves a process or a temporary file.
        """
        started = time.monotonic()
        copy_project(self._project, self.undisturbed, params={})
        with _sweeping(self.undisturbed, self.is_over) as sweep:
            sweep.start()
            sweep.finish()
            if problems := _list_left(sweep):
                raise DrillFailed("; ".join(problems))
        return time.monotonic() - started

    @contextmanager
    def sweeping(self, folder: Path, *, params: Mapping[str, Any]) -> Iterator[DrilledSweep]:
        """Yields the sweep of another copy of the project, on the shared servers.

        Args:
            folder: folder of the copy; must not exist.
            params: changes to its params.yaml, by dotted key.
        """
        copy_project(self._project, folder, params=params)
        with _sweeping(folder, self.is_over) as sweep:
            self._servers.use(sweep)
            yield sweep

    def run(self, drill: Drill) -> Outcome:
        """Runs one drill; a failed one leaves its folder."""
        started, fault = time.monotonic(), find_fault(drill.fault)
        if why := fault.why_not():
            return Outcome(drill, 0.0, skipped=why)
        folder = self.folder / f"drill-{drill.number}"
        params = {"ray.max_concurrent": fault.trials_at_once, **fault.params}
        copy_project(self._project, folder, params=params)
        recovery, problems = self._run_in(folder, drill)
        seconds = time.monotonic() - started
        if not problems or self.is_over.is_set():
            shutil.rmtree(folder)
        return Outcome(drill, seconds, recovery, problems, folder=folder if problems else None)

    def _run_in(self, folder: Path, drill: Drill) -> tuple[str, list[str]]:
        with _sweeping(folder, self.is_over) as sweep:
            fault, scene = find_fault(drill.fault), Scene(drill, sweep)
            if not fault.starts_servers:
                self._servers.use(sweep)
            with scene.cleanup:
                try:
                    recovery = fault.strike(scene)
                except DrillFailed as error:
                    return "", [str(error)]
                except Exception as error:
                    # A defect of one drill must not end the others.
                    return "", [f"{type(error).__name__}: {error}"]
                problems = _list_left(sweep) + check_results(folder, self.undisturbed)
                return recovery, problems + count_starts(sweep.ended(), at_most=MAX_STARTS)


@contextmanager
def _sweeping(folder: Path, is_over: threading.Event) -> Iterator[DrilledSweep]:
    sweep = DrilledSweep(folder, is_over=is_over)
    try:
        yield sweep
    finally:
        sweep.close()
        shutil.rmtree(sweep.temporary, ignore_errors=True)


def _list_left(sweep: DrilledSweep) -> list[str]:
    left = sweep.family.left(seconds=GRACE_SECONDS)
    return [f"the process {name} is left" for name in left] + list_temporary(sweep.temporary)


def run_drills(
    drills: Sequence[Drill],
    ground: DrillGround,
    *,
    parallel: int,
    on_outcome: Callable[[Outcome], None],
) -> list[Outcome]:
    """Runs drills and calls back at the end of each; returns the outcomes by number."""
    outcomes: list[Outcome] = []

    def run(drill: Drill) -> Outcome | None:
        return None if ground.is_over.is_set() else ground.run(drill)

    with ThreadPoolExecutor(parallel) as pool:
        waiting = [pool.submit(run, drill) for drill in drills]
        try:
            for done in as_completed(waiting):
                if outcome := done.result():
                    outcomes.append(outcome)
                    on_outcome(outcome)
        finally:
            # After Ctrl-C no further drill begins, and the running ones end.
            ground.is_over.set()
    return sorted(outcomes, key=lambda outcome: outcome.drill.number)


@contextmanager
def drill_folder() -> Iterator[Path]:
    """Yields a temporary folder, and removes it unless a failed drill is left in it.

    SIGTERM ends the block as Ctrl-C does, so that it leaves nothing either. The folder is never in
    the project: what `kill -9` leaves there could be committed.
    """
    folder = Path(tempfile.mkdtemp(prefix="dml-drills-"))
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        yield folder
    finally:
        signal.signal(signal.SIGTERM, before)
        for name in ("project", "databases", "servers", "dvc"):
            shutil.rmtree(folder / name, ignore_errors=True)
        if not list(folder.glob("drill-*")):
            shutil.rmtree(folder, ignore_errors=True)


def _stop(number: int, _: FrameType | None) -> NoReturn:
    sys.exit(128 + number)
