"""The sweep of a drill's project: the real command as a process of its own."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from flows.drills.fault import DrillFailed
from flows.drills.processes import MARK, Family, find_trial_workers
from flows.drills.project import STUDY
from tasks.sources import imported_tree

BRISK = {
    "OMP_NUM_THREADS": "1",
    # Ray's workers give way to everything else, and would stand still on a busy machine.
    "RAY_worker_niceness": "0",
}
PATIENCE_SECONDS = 600.0
"""Nothing takes so long, also on a machine that is busy with other work."""
_UNWANTED = ("RAY_", "MLFLOW_", "PREFECT_", "DML_", "PYTHONPATH")
_PAUSE_SECONDS = 0.05
_LOOK_SECONDS = 0.5


class DrilledSweep:
    """Starts `dml stage sweep`, watches what it does, and hits it."""

    def __init__(self, folder: Path, *, is_over: threading.Event | None = None) -> None:
        """Prepares a sweep.

        Args:
            folder: the project.
            is_over: once it is set, nothing is waited for any more.
        """
        self._is_over = is_over or threading.Event()
        self.folder = folder
        # Short, since Ray has its sockets there.
        self.temporary = Path(tempfile.mkdtemp(prefix="drill-"))
        self.environment: dict[str, str] = {}
        self.family = Family(folder)
        self.process: subprocess.Popen[bytes] | None = None
        self._num_starts = 0
        self._looked = 0.0

    @property
    def working_folder(self) -> Path:
        """Where its trials run."""
        return self.folder / "results" / ".sweeps" / STUDY

    @property
    def printed(self) -> str:
        """What the command of the last start has printed."""
        return self._output_file.read_text(encoding="utf-8", errors="replace")

    @property
    def _output_file(self) -> Path:
        return self.folder / f"printed-{self._num_starts}.txt"

    @property
    def pid(self) -> int:
        """Number of the command's process."""
        return self._running_process.pid

    def start(self) -> None:
        """Starts the command in a session of its own, as a terminal does."""
        self._num_starts += 1
        self.process = self.launch(self._output_file)

    def launch(self, output: Path) -> subprocess.Popen[bytes]:
        """Starts the command beside what runs already, and returns its process."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(_UNWANTED)}
        own = {"TMPDIR": str(self.temporary), MARK: str(self.folder), **BRISK}
        # The command of an environment that several clones use has the sources of one of them.
        own["PYTHONPATH"] = str(imported_tree())
        with open(output, "wb") as printed:
            return subprocess.Popen(
                [str(Path(sys.executable).with_name("dml")), "stage", "sweep", STUDY],
                cwd=self.folder,
                env={**kept, **own, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=printed,
                start_new_session=True,
            )

    def wait_for(self, condition: Callable[[], Any], what: str) -> None:
        """Waits while the command runs.

        Raises:
            DrillFailed: when it ends before the condition is met, or time is over.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            self._look_sometimes()
            # What it did last may have met the condition.
            if self._running_process.poll() is not None and not condition():
                raise DrillFailed(f"the command ended before {what}: {self.last_words()}")
            if time.monotonic() > deadline:
                raise DrillFailed(f"no {what} within {PATIENCE_SECONDS:g} s: {self.last_words()}")
            self._pause()
        self.look()

    def wait_for_end(self) -> int:
        """Waits for the command and returns its exit code."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (code := self._running_process.poll()) is None:
            self._look_sometimes()
            if time.monotonic() > deadline:
                raise DrillFailed(f"it does not end: {self.last_words()}")
            self._pause()
        return code

    def finish(self) -> None:
        """Waits for the command, which has to end well."""
        if (code := self.wait_for_end()) != 0:
            raise DrillFailed(f"the command ended with {code}: {self.last_words()}")

    def hit(self, number: signal.Signals) -> int:
        """Sends a signal, Ctrl-C to the whole group as a terminal does; returns the exit code."""
        self.look()
        if number == signal.SIGINT:
            os.killpg(self._running_process.pid, number)
        else:
            self._running_process.send_signal(number)
        return self.wait_for_end()

    def look(self) -> list[psutil.Process]:
        """Takes note of every process that the command has started, and returns them."""
        self._looked = time.monotonic()
        return self.family.look(self._running_process.pid)

    def trial_workers(self) -> list[psutil.Process]:
        """Returns the processes that train."""
        self.look()
        return find_trial_workers(self.folder)

    @contextmanager
    def held_workers(self) -> Iterator[None]:
        """Holds up the processes that train within the block."""
        with held(self.trial_workers()):
            yield

    def ended(self) -> dict[str, tuple[str, int]]:
        """Returns, for each trial that has ended, its starts and when its result was written."""
        return {
            path.parent.name: (
                (path.parent / "starts").read_text(encoding="ascii"),
                path.stat().st_mtime_ns,
            )
            for path in self.working_folder.glob("trials/*/result.json")
        }

    def running(self) -> dict[str, int]:
        """Returns the trials that have begun and not ended, with their finished epochs."""
        begun = [path.parent for path in self.working_folder.glob("trials/*/epochs.jsonl")]
        return {
            folder.name: (folder / "epochs.jsonl").read_bytes().count(b"\n")
            for folder in begun
            if not (folder / "result.json").exists()
        }

    def last_words(self) -> str:
        """Returns the end of what the command printed."""
        lines = [line for line in self.printed.splitlines() if line.strip()]
        return " | ".join(lines[-5:]) or "it printed nothing"

    def close(self) -> None:
        """Ends what a failed drill has left."""
        if self.process is not None:
            self.look()
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            self.process.wait()
        self.family.kill()

    @property
    def _running_process(self) -> subprocess.Popen[bytes]:
        assert self.process is not None, "it was not started"
        return self.process

    def _pause(self) -> None:
        if self._is_over.wait(_PAUSE_SECONDS):
            raise DrillFailed("it was stopped")

    def _look_sometimes(self) -> None:
        # Every look reads all processes of the machine.
        if time.monotonic() - self._looked > _LOOK_SECONDS:
            self.look()


@contextmanager
def held(workers: Sequence[psutil.Process]) -> Iterator[None]:
    """Holds up processes within the block."""
    for worker in workers:
        worker.suspend()
    try:
        yield
    finally:
        for worker in workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.resume()
