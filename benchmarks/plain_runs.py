"""Runs the plain scripts, each in a new Python process."""

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.projects import make_environment

SCRIPTS = Path(__file__).parent / "plain"


@dataclass(frozen=True)
class PlainRun:
    """One run of a script."""

    seconds: float
    """From the start of the process to its end."""
    result: dict[str, Any]
    """Its output file."""


def run_script(
    name: str, folder: Path, *, variables: Mapping[str, str] | None = None, **options: object
) -> PlainRun:
    """Runs a script; an error shows its output.

    Args:
        name: of the script.
        folder: gets its output file.
        variables: of its environment.
        options: of its command line.
    """
    output = folder / "result.json"
    command = [sys.executable, str(SCRIPTS / f"{name}.py"), "--output", str(output)]
    for option, value in options.items():
        flag = f"--{option.replace('_', '-')}"
        command += [flag] if value is True else [flag, str(value)]
    started = time.perf_counter()
    environment = make_environment(folder, **(variables or {}))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return PlainRun(seconds, json.loads(output.read_text(encoding="utf-8")))
