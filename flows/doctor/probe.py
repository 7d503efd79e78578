"""The process of one probe: reads the request from its input, prints findings as JSON."""

import importlib
import json
import os
import signal
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flows.doctor.findings import Finding
    from flows.doctor.request import DoctorRequest

PROBES = {
    "ray": "flows.doctor.ray_cluster",
    "data": "flows.doctor.data",
    "disk": "flows.doctor.space",
    "prefect": "flows.doctor.prefect_server",
    "mlflow": "flows.doctor.mlflow_store",
    "dvc": "flows.doctor.dvc_remote",
}
"""Each of these modules has a function `probe`."""


def main(name: str, limit_seconds: float) -> None:
    """Prints what a probe finds; ends by itself, should the command that started it be killed."""
    signal.setitimer(signal.ITIMER_REAL, limit_seconds)
    # Libraries print as they like; what stands on the output is JSON alone.
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    from flows.doctor.request import DoctorRequest

    request = DoctorRequest.model_validate_json(sys.stdin.read())
    findings = run_probe(name, request)
    output.write(json.dumps([asdict(finding) for finding in findings]))
    output.close()


def run_probe(name: str, request: "DoctorRequest") -> "list[Finding]":
    """Returns what a probe finds."""
    findings: list[Finding] = importlib.import_module(PROBES[name]).probe(request)
    return findings


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
