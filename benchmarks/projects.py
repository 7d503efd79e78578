"""Projects in temporary folders, in which the benchmarks run the real command."""

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from dml_core.config.loading import load_params, unflatten
from tasks.run_log import list_logs, read_log

ROOT = Path(__file__).parents[1]
CODE = ("dml_core", "tasks", "flows")
COPIED = (
    *("dvc.yaml", "requirements.lock"),
    *(".dvcignore", ".gitignore", ".dvc/config", ".dvc/.gitignore"),
)
DML = Path(sys.executable).with_name("dml")
_REMOVED_VARIABLES = ("PREFECT", "MLFLOW", "RAY_", "DML_")


@dataclass(frozen=True)
class Project:
    """A folder with parameters and studies, in which `dml` runs as in any project."""

    folder: Path

    def write_study(self, name: str, content: Mapping[str, Any]) -> None:
        """Adds a study and commits it, so that the commit describes the code."""
        text = json.dumps(content)
        (self.folder / "studies" / f"{name}.yaml").write_text(text, encoding="utf-8")
        _commit(self.folder)

    def run(self, *arguments: str, **extra: str) -> float:
        """Runs `dml` with arguments and returns the seconds; an error shows its output."""
        started = time.perf_counter()
        done = subprocess.run(
            [str(DML), *arguments],
            cwd=self.folder,
            env=make_environment(self.folder, **extra),
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.perf_counter() - started
        if done.returncode:
            raise RuntimeError(f"dml {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")
        return seconds

    def read_events(self, study: str) -> list[dict[str, Any]]:
        """Returns the lines of the newest log of a study, with times in seconds."""
        working_folder = self.folder / "results" / ".sweeps" / study
        return [
            {**line, "time": datetime.fromisoformat(line["time"]).timestamp()}
            for line in read_log(list_logs(working_folder)[-1])
        ]


def make_project(folder: Path, params: Mapping[str, Any]) -> Project:
    """Creates a project with the code and stages of this one, and changed parameters."""
    for name in COPIED:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / name)
    for name in CODE:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in ("studies", "data/raw", "home"):
        (folder / name).mkdir(parents=True)
    (folder / "data" / "raw" / "README.md").touch()
    (folder / "studies" / "tracked.json").write_text('{"studies": {}}', encoding="utf-8")
    content = unflatten({**load_params(ROOT / "params.yaml"), **params})
    (folder / "params.yaml").write_text(json.dumps(content), encoding="utf-8")
    _git(folder, "init", "--quiet", "--initial-branch", "main")
    (folder / ".git" / "info").mkdir(exist_ok=True)
    (folder / ".git" / "info" / "exclude").write_text("/home/\n", encoding="ascii")
    _commit(folder)
    return Project(folder)


@contextmanager
def temporary_project(params: Mapping[str, Any]) -> Iterator[Project]:
    """Yields a project and removes it afterwards."""
    with tempfile.TemporaryDirectory(prefix="dml-bench-", ignore_cleanup_errors=True) as name:
        yield make_project(Path(name), params)


@cache
def open_served_project() -> Project:
    """Returns one project for all benchmarks of this process; its servers stay up until the end.

    Starting them takes longer than some benchmarks.
    """
    stack = ExitStack()
    atexit.register(stack.close)
    project = stack.enter_context(temporary_project({}))
    stack.callback(project.run, "down")
    project.run("up", "--prefect-port", "0", "--mlflow-port", "0")
    return project


def make_environment(folder: Path, **extra: str) -> dict[str, str]:
    """Returns an environment without servers and user settings."""
    kept = {
        name: text for name, text in os.environ.items() if not name.startswith(_REMOVED_VARIABLES)
    }
    quiet = {"HOME": str(folder / "home"), "GIT_CONFIG_GLOBAL": os.devnull, "DVC_NO_ANALYTICS": "1"}
    path = f"{DML.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**kept, **quiet, "PATH": path, **extra}


def _commit(folder: Path) -> None:
    _git(folder, "add", "--all")
    _git(folder, "commit", "--quiet", "--allow-empty", "--message", "benchmark")


def _git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=benchmark", "-c", "user.email=benchmark@localhost")
    command = ["git", *who, *arguments]
    subprocess.run(command, cwd=folder, env=make_environment(folder), check=True)
