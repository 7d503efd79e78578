"""Runs probes at once, each in a process of its own that is ended when its time is over.

A thread that waits for a dead server cannot be ended, a process can.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from flows.doctor.findings import Finding, broken
from flows.doctor.request import DoctorRequest

_STARTING_SECONDS = 5.0
"""What a process may take beyond its time to start and to end by itself."""


@dataclass(frozen=True)
class Probe:
    """One probe, and what to say when nothing comes back from it."""

    name: str
    """Name in `flows.doctor.probe`, and the subject of its findings."""
    remedy: str
    """What to do when it does not end in time."""


def run_probes(probes: Sequence[Probe], request: DoctorRequest) -> list[Finding]:
    """Returns the findings of all probes, in their order, after the time limit at the latest."""
    if not probes:
        return []
    processes = [_start(probe, request) for probe in probes]
    try:
        with ThreadPoolExecutor(len(probes)) as pool:
            limit = request.timeout_seconds + _STARTING_SECONDS
            text = request.model_dump_json()
            waits = [
                pool.submit(_wait, probe, process, text, limit)
                for probe, process in zip(probes, processes, strict=True)
            ]
            return [finding for wait in waits for finding in wait.result()]
    finally:
        for process in processes:
            _end(process)


def _start(probe: Probe, request: DoctorRequest) -> "subprocess.Popen[str]":
    limit = str(request.timeout_seconds + 2 * _STARTING_SECONDS)
    return subprocess.Popen(
        [sys.executable, "-m", "flows.doctor.probe", probe.name, limit],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=_environment(os.environ),
        # With a group of its own, so that what it starts is ended with it.
        start_new_session=True,
    )


def _environment(own: Mapping[str, str]) -> dict[str, str]:
    quiet = {"DVC_NO_ANALYTICS": "1", "DO_NOT_TRACK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    return {**quiet, **own, "PYTHONWARNINGS": "ignore"}


def _wait(probe: Probe, process: "subprocess.Popen[str]", text: str, limit: float) -> list[Finding]:
    try:
        output, errors = process.communicate(text, timeout=limit)
    except subprocess.TimeoutExpired:
        _end(process)
        return [broken(probe.name, f"no answer within {limit:g} s", probe.remedy)]
    try:
        return [Finding(**entry) for entry in json.loads(output)]
    except (ValueError, TypeError):
        return [_describe_failure(probe, process.returncode, errors)]


def _describe_failure(probe: Probe, code: int | None, errors: str) -> Finding:
    last = (errors.strip().splitlines() or [f"its process ended with {code}"])[-1][:300]
    return broken(
        probe.name,
        f"could not be looked at: {last}",
        "Install the environment again: make setup. Then run: dml doctor",
    )


def _end(process: "subprocess.Popen[str]") -> None:
    with contextlib.suppress(ProcessLookupError):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
