"""The sweep of a drill: the real command in its own process, and every process that it starts."""

import contextlib
import json
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

from dml_core.trials.bucket import BucketStore
from dml_core.trials.journal import RESULT_FILE, Journal
from tasks.sources import imported_tree
from tests.drills.plan import DrillFailed
from tests.drills.project import STUDY, parse_keys, read_keys
from tests.references.processes import is_alive, name_of

BRISK = {
    "OMP_NUM_THREADS": "1",
    # By default Ray's workers are nice, and starve on a busy machine.
    "RAY_worker_niceness": "0",
}
PATIENCE_SECONDS = 600.0
"""Limit of every wait; generous, for a machine that is busy with other work."""
_REMOVED_VARIABLES = ("RAY_", "MLFLOW_", "PREFECT_", "DML_", "PYTHONPATH")
_PAUSE_SECONDS = 0.05
_POLL_SECONDS = 0.5
MARK = "DML_DRILL"
"""Environment variable of every process of a drill; its value is the drill's folder."""


class Family:
    """The processes of a drill, found by descent, by environment and by working folder.

    Descent misses processes that were started and orphaned between two polls. The environment
    variable misses processes that overwrite their environment, as Ray's workers do. Both miss the
    workers of a cluster that was up before the drill; those work in the project's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._known: dict[int, psutil.Process] = {}

    def add_children(self, pid: int) -> list[psutil.Process]:
        """Adds all descendants of a process, and returns every known process."""
        try:
            children = psutil.Process(pid).children(recursive=True)
        except psutil.NoSuchProcess:
            children = []
        self._known.update({child.pid: child for child in children})
        return list(self._known.values())

    def living(self) -> list[psutil.Process]:
        """Returns the processes that are alive."""
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                if self._folder in (process.environ().get(MARK), process.cwd()):
                    self._known.setdefault(process.pid, process)
        return [process for process in self._known.values() if is_alive(process)]

    def left(self, *, seconds: float) -> list[str]:
        """Returns pid and name of each process that is still alive after a time."""
        deadline = time.monotonic() + seconds
        while (left := self.living()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return [f"{process.pid} {name_of(process)}" for process in left]

    def kill(self) -> None:
        """Kills all of them."""
        for process in self.living():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


class DrilledSweep:
    """Starts `dml stage sweep`, follows its progress, and sends it signals."""

    def __init__(self, folder: Path, *, is_over: threading.Event | None = None) -> None:
        """Prepares a sweep.

        Args:
            folder: the project.
            is_over: ends every wait once it is set.
        """
        self._is_over = is_over or threading.Event()
        self.folder = folder
        # A short path: Ray's sockets lie below it.
        self.temporary = Path(tempfile.mkdtemp(prefix="drill-"))
        self.environment: dict[str, str] = {}
        self.bucket: BucketStore | None = None
        """Where the journals are, if not in the project."""
        self.family = Family(folder)
        self.process: subprocess.Popen[bytes] | None = None
        self._num_starts = 0
        self._polled = 0.0

    @property
    def working_folder(self) -> Path:
        """The folder of the study's own record."""
        return self.folder / "results" / ".sweeps" / STUDY

    @property
    def trials_folder(self) -> Path:
        """The folder of the journals."""
        return self.folder / "results" / ".trials"

    def journals(self) -> dict[str, Path]:
        """Returns the journal of each trial that the sweep has requested."""
        return {trial: self.trials_folder / key for trial, key in read_keys(self.folder).items()}

    @property
    def printed(self) -> str:
        """The output of the last start of the command."""
        return self._output_file.read_text(encoding="utf-8", errors="replace")

    @property
    def _output_file(self) -> Path:
        return self.folder / f"printed-{self._num_starts}.txt"

    @property
    def pid(self) -> int:
        """The pid of the command."""
        return self._running_process.pid

    def start(self) -> None:
        """Starts the command in its own session, as a terminal does."""
        self._num_starts += 1
        self.process = self.launch(self._output_file)

    def launch(self, output: Path) -> subprocess.Popen[bytes]:
        """Starts the command, also beside one that runs, and returns its process."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(_REMOVED_VARIABLES)}
        own = {"TMPDIR": str(self.temporary), MARK: str(self.folder), **BRISK}
        # An environment that several clones share has the sources of one of them.
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
        """Waits for a condition while the command runs.

        Raises:
            DrillFailed: if the command ends before, or the wait times out.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            self._poll_family_sometimes()
            # Its last action may have met the condition.
            if self._running_process.poll() is not None and not condition():
                raise DrillFailed(f"the command ended before {what}: {self.last_words()}")
            if time.monotonic() > deadline:
                raise DrillFailed(f"no {what} within {PATIENCE_SECONDS:g} s: {self.last_words()}")
            self._pause()
        self.poll_family()

    def wait_for_end(self) -> int:
        """Waits for the command and returns its exit code."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (code := self._running_process.poll()) is None:
            self._poll_family_sometimes()
            if time.monotonic() > deadline:
                raise DrillFailed(f"the command does not end: {self.last_words()}")
            self._pause()
        return code

    def finish(self) -> None:
        """Waits for the command, which must end with 0."""
        if (code := self.wait_for_end()) != 0:
            raise DrillFailed(f"the command ended with {code}: {self.last_words()}")

    def send_signal(self, number: signal.Signals) -> int:
        """Sends a signal, SIGINT to the whole group as a terminal does; returns the exit code."""
        self.poll_family()
        if number == signal.SIGINT:
            os.killpg(self._running_process.pid, number)
        else:
            self._running_process.send_signal(number)
        return self.wait_for_end()

    def poll_family(self) -> list[psutil.Process]:
        """Records every process that the command has started, and returns them."""
        self._polled = time.monotonic()
        return self.family.add_children(self._running_process.pid)

    def trial_workers(self) -> list[psutil.Process]:
        """Returns the processes that train."""
        self.poll_family()
        return find_trial_workers(self.folder)

    @contextmanager
    def suspended_workers(self) -> Iterator[None]:
        """Suspends the processes that train within the block."""
        with suspended(self.trial_workers()):
            yield

    def ended(self) -> dict[str, tuple[int, int]]:
        """Returns the attempts and the time of the result of each ended trial."""
        if self.bucket is not None:
            return find_ended(self.bucket, self.working_folder)
        results = {trial: path / "result.json" for trial, path in self.journals().items()}
        return {
            trial: (
                json.loads(path.read_text(encoding="utf-8"))["attempt"],
                path.stat().st_mtime_ns,
            )
            for trial, path in results.items()
            if path.exists()
        }

    def running(self) -> dict[str, int]:
        """Returns the finished epochs of each trial that has begun and not ended."""
        if self.bucket is not None:
            return find_running(self.bucket, self.working_folder)
        return {
            trial: (path / "epochs.jsonl").read_bytes().count(b"\n")
            for trial, path in self.journals().items()
            if (path / "epochs.jsonl").exists() and not (path / "result.json").exists()
        }

    def last_words(self) -> str:
        """Returns the last lines that the command printed."""
        lines = [line for line in self.printed.splitlines() if line.strip()]
        return " | ".join(lines[-5:]) or "it printed nothing"

    def close(self) -> None:
        """Kills the processes that a failed drill has left."""
        if self.process is not None:
            self.poll_family()
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            self.process.wait()
        self.family.kill()

    @property
    def _running_process(self) -> subprocess.Popen[bytes]:
        assert self.process is not None, "the sweep was not started"
        return self.process

    def _pause(self) -> None:
        if self._is_over.wait(_PAUSE_SECONDS):
            raise DrillFailed("the drill was stopped")

    def _poll_family_sometimes(self) -> None:
        # Each poll reads all processes of the machine.
        if time.monotonic() - self._polled > _POLL_SECONDS:
            self.poll_family()


def find_ended(store: BucketStore, working_folder: Path) -> dict[str, tuple[int, int]]:
    """Returns the attempts and the time of the result of each ended trial in a bucket."""
    found = {}
    for trial, key in parse_keys(store.open_log(working_folder).read()).items():
        if result := Journal(store, key).result():
            changed = store.changed_at(key, RESULT_FILE) or 0.0
            found[trial] = (int(result["attempt"]), int(changed * 1e9))
    return found


def find_running(store: BucketStore, working_folder: Path) -> dict[str, int]:
    """Returns the finished epochs of each trial in a bucket that has begun and not ended."""
    journals = {
        trial: Journal(store, key)
        for trial, key in parse_keys(store.open_log(working_folder).read()).items()
    }
    found = {trial: len(each.epochs()) for trial, each in journals.items() if not each.result()}
    return {trial: epochs for trial, epochs in found.items() if epochs}


def find_trial_workers(folder: Path) -> list[psutil.Process]:
    """Returns the processes that train in a project's folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            trains = process.name().startswith("ray::Implicit") and is_alive(process)
            if trains and process.cwd() == str(folder):
                found.append(process)
    return found


@contextmanager
def suspended(workers: Sequence[psutil.Process]) -> Iterator[None]:
    """Suspends processes within the block."""
    for worker in workers:
        worker.suspend()
    try:
        yield
    finally:
        for worker in workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.resume()
