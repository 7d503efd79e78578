"""A probe: what it gets, what it finds, and the process that it runs in.

Probes run concurrently, each in its own process, which is killed when its time is over: a thread
that waits for a dead server cannot be ended, a process can.
"""

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from tasks.secrets import HIDDEN, redact
from tasks.study import StudyRequest

_STARTING_SECONDS = 5.0
"""Time beyond its limit that a process has to start and to end by itself."""
_SHORTEST_SECRET = 4
"""Shorter values, such as 1 or on, would be struck out of every sentence."""
_LONGER = "Check it yourself, or give it longer: dml doctor --timeout 300"


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    subject: str
    """python, versions, ray, gpu, data, disk, memory, prefect, mlflow, dvc, storage and so on."""
    state: Literal["ok", "warning", "broken"]
    """broken: a run would fail or misbehave. warning: it may."""
    message: str
    remedy: str = ""
    """What to do; empty only if the state is ok."""

    def __post_init__(self) -> None:
        """Removes credentials, and asserts that every problem has a remedy."""
        assert self.remedy or self.state == "ok", f"no remedy for {self.subject}: {self.message}"
        object.__setattr__(self, "message", hide_secrets(self.message))
        object.__setattr__(self, "remedy", hide_secrets(self.remedy))


class DoctorRequest(BaseModel):
    """The plan to check and the servers to use, as plain values for a probe's process."""

    model_config = ConfigDict(frozen=True)

    study: StudyRequest
    """Its plan decides how much disk and memory and which data are needed."""
    timeout_seconds: float
    """Time limit of a probe."""
    prefect_url: str = ""
    """API of the Prefect server; empty if a run starts its own."""
    prefect_source: str = ""
    """Origin of that address, for messages."""


@dataclass(frozen=True)
class Probe:
    """One probe, and the remedy if it does not end in time."""

    name: str
    """Name in PROBES, and the subject of its findings."""
    remedy: str


PROBES = (
    Probe("ray", f"Check ray.address, the network and RAY_AUTH_TOKEN_PATH. {_LONGER}"),
    Probe("data", f"The disk may hang. {_LONGER}"),
    Probe("disk", f"The disk may hang. {_LONGER}"),
    Probe("prefect", f"Start it again: dml down, then dml up. {_LONGER}"),
    Probe("mlflow", f"Start it again, or let mlflow.tracking_uri name another store. {_LONGER}"),
    Probe("dvc", f"Check the remote's address, the network and credentials. {_LONGER}"),
    Probe("storage", f"Check sweep.storage, the network and AWS_ENDPOINT_URL. {_LONGER}"),
)
_FUNCTIONS = {
    "ray": "flows.doctor.ray_cluster:probe",
    "data": "flows.doctor.data:probe",
    "disk": "flows.doctor.space:probe",
    "prefect": "flows.doctor.services:probe_prefect",
    "mlflow": "flows.doctor.services:probe_mlflow",
    "dvc": "flows.doctor.services:probe_dvc",
    "storage": "flows.doctor.services:probe_storage",
}
"""Each takes a DoctorRequest and returns findings; imported in the probe's process only."""


def ok(subject: str, message: str) -> Finding:
    """Returns the finding that something works."""
    return Finding(subject, "ok", message)


def warning(subject: str, message: str, remedy: str) -> Finding:
    """Returns the finding of possible trouble."""
    return Finding(subject, "warning", message, remedy)


def broken(subject: str, message: str, remedy: str) -> Finding:
    """Returns the finding that something does not work."""
    return Finding(subject, "broken", message, remedy)


def run_probes(probes: Sequence[Probe], request: DoctorRequest) -> list[Finding]:
    """Returns the findings of all probes, in their order, within the time limit."""
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


def main() -> None:
    """Runs in a probe's process: reads the request from stdin, prints the findings as JSON."""
    name, limit_seconds = sys.argv[1:]
    # The process ends by itself if the command that started it is killed.
    signal.setitimer(signal.ITIMER_REAL, float(limit_seconds))
    # Libraries may print; stdout is for the JSON alone.
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    request = DoctorRequest.model_validate_json(sys.stdin.read())
    module, _, function = _FUNCTIONS[name].partition(":")
    findings = getattr(importlib.import_module(module), function)(request)
    output.write(json.dumps([asdict(finding) for finding in findings]))
    output.close()


def _start(probe: Probe, request: DoctorRequest) -> "subprocess.Popen[str]":
    limit = str(request.timeout_seconds + 2 * _STARTING_SECONDS)
    code = "from flows.doctor.probes import main; main()"
    quiet = {"DVC_NO_ANALYTICS": "1", "DO_NOT_TRACK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    return subprocess.Popen(
        [sys.executable, "-c", code, probe.name, limit],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**quiet, **os.environ, "PYTHONWARNINGS": "ignore"},
        # In its own process group, so that its children are killed with it.
        start_new_session=True,
    )


def _wait(probe: Probe, process: "subprocess.Popen[str]", text: str, limit: float) -> list[Finding]:
    try:
        output, errors = process.communicate(text, timeout=limit)
    except subprocess.TimeoutExpired:
        _end(process)
        return [broken(probe.name, f"no answer within {limit:g} s", probe.remedy)]
    try:
        return [Finding(**entry) for entry in json.loads(output)]
    except (ValueError, TypeError):
        ended = f"its process ended with {process.returncode}"
        last = (errors.strip().splitlines() or [ended])[-1][:300]
        remedy = "Install the environment again: make setup. Then run: dml doctor"
        return [broken(probe.name, f"could not be checked: {last}", remedy)]


def _end(process: "subprocess.Popen[str]") -> None:
    with contextlib.suppress(ProcessLookupError):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def hide_secrets(text: str, *, environment: Mapping[str, str] = os.environ) -> str:
    """Returns a text without secrets, which a library's message may contain."""
    hidden = redact(text, environment)
    # The password in user:password is a secret too.
    for name, value in environment.items():
        password = value.partition(":")[2]
        if name.endswith("AUTH_STRING") and len(password) >= _SHORTEST_SECRET:
            hidden = hidden.replace(password, HIDDEN)
    return hidden


def first_line(error: BaseException, *, length: int = 300) -> str:
    """Returns the first line of an error's message, or its type if it has none."""
    lines = str(error).strip().splitlines()
    return lines[0][:length].rstrip(". ") if lines else type(error).__name__


def in_units(num_bytes: float) -> str:
    """Returns a number of bytes in a readable unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:,.1f} TiB"


def nearest_folder(path: Path) -> Path:
    """Returns the path itself, or its nearest parent that exists."""
    while not path.exists():
        path = path.parent
    return path
