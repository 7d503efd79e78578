"""A tiny project whose sweep is run by the `dml` command, to be hit in mid-sweep."""

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq

from dml_core.config.loading import load_params, unflatten
from tests.references.empty_databases import give_databases
from tests.references.tiny_studies import TWO_ARMS
from tests.references.tiny_trials import TINY, prepare_tiny

ROOT = Path(__file__).parents[2]
DML = Path(sys.executable).with_name("dml")
NUM_EPOCHS = 40
TIMINGS = {"train_seconds", "resumed"}
"""Columns of trials.parquet that tell of the way, not of the result."""
PATIENCE_SECONDS = 600.0


def make_project(folder: Path) -> Path:
    """Writes a project with one tiny study, its data prepared and its MLflow database empty."""
    (folder / "studies").mkdir()
    (folder / "studies" / "tiny.yaml").write_text(TWO_ARMS, encoding="utf-8")
    params = {**load_params(ROOT / "params.yaml"), **TINY, "training.epochs": NUM_EPOCHS}
    (folder / "params.yaml").write_text(json.dumps(unflatten(params)), encoding="utf-8")
    prepare_tiny(folder / "data" / "prepared")
    return give_databases(folder)


class DrilledSweep:
    """The sweep of a project: its command as a process with a folder for temporary files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Short, since Ray has its sockets there.
        self.temporary = Path(tempfile.mkdtemp(prefix="drill-"))
        self.environment: dict[str, str] = {}
        self._family: dict[int, psutil.Process] = {}
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def working_folder(self) -> Path:
        return self.folder / "results" / ".sweeps" / "tiny"

    @property
    def printed(self) -> str:
        return (self.folder / "printed.txt").read_text(encoding="utf-8")

    def start(self) -> None:
        """Starts the command in a session of its own, as a terminal does."""
        unwanted = ("RAY_", "MLFLOW_", "PREFECT_", "DML_")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(unwanted)}
        own = {"OMP_NUM_THREADS": "1", "TMPDIR": str(self.temporary), **self.environment}
        with open(self.folder / "printed.txt", "wb") as printed:
            self.process = subprocess.Popen(
                [str(DML), "stage", "sweep", "tiny"],
                cwd=self.folder,
                env={**kept, **own},
                stdout=printed,
                stderr=printed,
                start_new_session=True,
            )

    def wait_for(self, condition: Callable[[], Any], what: str) -> None:
        """Waits while the command runs; fails when it ends before the condition is met."""
        assert self.process is not None
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            self.look()
            assert self.process.poll() is None, f"it ended before {what}:\n{self.printed}"
            assert time.monotonic() < deadline, f"no {what} in time:\n{self.printed}"
            time.sleep(0.05)
        self.look()

    def look(self) -> list[psutil.Process]:
        """Takes note of every process that the command has started, and returns them."""
        assert self.process is not None
        try:
            children = psutil.Process(self.process.pid).children(recursive=True)
            self._family.update({child.pid: child for child in children})
        except psutil.NoSuchProcess:
            pass
        return list(self._family.values())

    def trial_workers(self) -> list[psutil.Process]:
        """Returns the processes that train."""
        return [p for p in self.look() if is_alive(p) and name_of(p).startswith("ray::Implicit")]

    def kill_workers(self) -> None:
        """Kills the processes that train."""
        for worker in self.trial_workers():
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()

    @contextmanager
    def held_workers(self) -> Iterator[None]:
        """Holds up the processes that train within the block."""
        workers = self.trial_workers()
        for worker in workers:
            worker.suspend()
        try:
            yield
        finally:
            for worker in workers:
                with contextlib.suppress(psutil.NoSuchProcess):
                    worker.resume()

    def ended(self) -> dict[str, tuple[str, int]]:
        """Returns, for each trial that has ended, its starts and when its result was written."""
        return {
            path.parent.name: (
                (path.parent / "starts").read_text(encoding="ascii"),
                path.stat().st_mtime_ns,
            )
            for path in self.working_folder.glob("trials/*/result.json")
        }

    def running(self) -> list[str]:
        """Returns the trials that have begun and not ended, with some epochs done."""
        begun = [path.parent for path in self.working_folder.glob("trials/*/epochs.jsonl")]
        return [
            folder.name
            for folder in begun
            if not (folder / "result.json").exists()
            and len((folder / "epochs.jsonl").read_bytes().splitlines()) > 1
        ]

    def wait_for_the_middle(self, *, num_ended: int = 1) -> None:
        """Waits until so many trials have ended in all, and another one is under way."""
        self.wait_for(
            lambda: len(self.ended()) >= num_ended and self.running() and self.trial_workers(),
            f"the end of {num_ended} trials",
        )

    def hit(self, number: signal.Signals) -> int:
        """Sends a signal, Ctrl-C to the whole group as a terminal does; returns the exit code."""
        assert self.process is not None
        if number == signal.SIGINT:
            os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)
        return self.process.wait(timeout=PATIENCE_SECONDS)

    def finish(self) -> None:
        """Waits for the command, which has to end well."""
        assert self.process is not None
        self.wait_for_end()
        assert self.process.returncode == 0, self.printed

    def wait_for_end(self) -> None:
        assert self.process is not None
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.process.poll() is None:
            self.look()
            assert time.monotonic() < deadline, f"it does not end:\n{self.printed}"
            time.sleep(0.1)

    def left_processes(self, *, seconds: float = 60.0) -> list[str]:
        """Returns what the command started and still lives when the time is over."""
        deadline = time.monotonic() + seconds
        while (left := self._living()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left

    def left_files(self) -> list[str]:
        """Returns the temporary files that are still there; PyTorch's shared cache is no such."""
        names = (path.name for path in self.temporary.iterdir())
        return [name for name in names if not name.startswith("torchinductor_")]

    def close(self) -> None:
        """Ends what a failed test has left."""
        if self.process is not None and self.process.poll() is None:
            self.look()
            self.process.kill()
            self.process.wait()
        for process in self._family.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        shutil.rmtree(self.temporary, ignore_errors=True)

    def _living(self) -> list[str]:
        return [f"{p.pid} {name_of(p)}" for p in self._family.values() if is_alive(p)]


def is_alive(process: psutil.Process) -> bool:
    """Returns whether a process still does something."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def name_of(process: psutil.Process) -> str:
    """Returns a process's name, nothing for one that has ended."""
    try:
        return str(process.name())
    except psutil.Error:
        return ""


def read_table(folder: Path) -> list[dict[str, Any]]:
    """Returns the rows of a sweep's trials.parquet without what differs from run to run."""
    table = pq.read_table(folder / "results" / "tiny" / "sweep" / "trials.parquet")
    return table.drop_columns(sorted(TIMINGS)).to_pylist()


def read_record(folder: Path) -> list[tuple[Any, ...]]:
    """Returns what MLflow's database has of each run: its trial, its status, and each epoch.

    A run or an epoch that was recorded twice stands here twice.
    """
    with sqlite3.connect(folder / "mlflow.db") as database:
        runs = database.execute(
            "select runs.run_uuid, tags.value, runs.status from runs left join tags"
            " on tags.run_uuid = runs.run_uuid and tags.key = 'trial_id'"
        ).fetchall()
        steps = database.execute(
            "select run_uuid, step, value from metrics where key = 'validation.map_at_r'"
        ).fetchall()
    database.close()
    return sorted(
        (trial or "", status, sorted((step, value) for run, step, value in steps if run == run_id))
        for run_id, trial, status in runs
    )
