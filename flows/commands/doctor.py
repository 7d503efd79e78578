"""dml doctor: whether everything that a run needs is there, and what to do where it is not."""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from dml_core.config.problems import suggest
from flows.commands.terminal import say
from flows.doctor.environment import (
    check_ports,
    check_python,
    check_sources,
    check_versions,
    find_installed_tree,
)
from flows.doctor.probes import PROBES, DoctorRequest, Finding, broken, ok, run_probes
from flows.servers.access import sign_in_to_prefect
from flows.servers.connect import choose_mlflow, choose_prefect
from flows.servers.processes import find_process
from flows.servers.record import ServerRecord, load_records
from tasks.study import StudyRequest, load_context

HERE = ("python", "sources", "versions", "plan", "ports", "servers")
"""Subjects that need no separate process."""


def run_doctor(
    request: StudyRequest,
    *,
    timeout_seconds: float,
    ports: Mapping[str, int | None],
    only: Sequence[str],
    as_json: bool,
) -> None:
    """Prints what was found; ends with 1 when something is broken.

    Args:
        request: the study whose plan is looked at.
        timeout_seconds: for each probe; they run at once.
        ports: for each server the port that must be free; None for the usual one.
        only: subjects to look at; none takes all.
        as_json: print JSON instead of lines.
    """
    check_subjects(only)
    started = time.monotonic()
    records, findings = _read_records(Path.cwd())
    findings += _check_here(only, ports, records)
    probes = [probe for probe in PROBES if not only or probe.name in only]
    # Every probe reads the plan, so that without a sound one there is nothing to ask them.
    plan = _check_plan(request)
    if not only or "plan" in only or plan.state == "broken":
        findings.append(plan)
    if plan.state == "ok":
        asked = make_request(request, records, timeout_seconds=timeout_seconds)
        findings += run_probes(probes, asked)
    _print(request, findings, seconds=time.monotonic() - started, as_json=as_json)
    if any(finding.state == "broken" for finding in findings):
        raise SystemExit(1)


def check_subjects(names: Sequence[str]) -> None:
    """Raises ValueError where a name is no subject."""
    known = [*HERE, *(probe.name for probe in PROBES)]
    for name in names:
        if name not in known:
            raise ValueError(
                f"--only must be one of {', '.join(known)}. Got {name!r}.{suggest(name, known)}"
            )


def _check_here(
    only: Sequence[str], ports: Mapping[str, int | None], records: Mapping[str, ServerRecord]
) -> list[Finding]:
    """What needs no process of its own."""
    checks: dict[str, Callable[[], list[Finding]]] = {
        "python": lambda: [check_python()],
        "sources": lambda: [check_sources(Path.cwd(), find_installed_tree())],
        "versions": lambda: [check_versions(Path.cwd())],
        "ports": lambda: check_ports(ports, records),
        "servers": lambda: _check_records(records),
    }
    return [f for name, check in checks.items() if not only or name in only for f in check()]


def make_request(
    study: StudyRequest, records: Mapping[str, ServerRecord], *, timeout_seconds: float
) -> DoctorRequest:
    """Returns what the probes are asked, with the servers that a run in this folder would use."""
    source = "PREFECT_API_URL" if os.environ.get("PREFECT_API_URL") else "started by dml up"
    # The probes' processes inherit the addresses and what signs in to them.
    if record := records.get("prefect"):
        os.environ.update(choose_prefect(record))
    if record := records.get("mlflow"):
        os.environ.update(choose_mlflow(record))
    return DoctorRequest(
        study=study,
        timeout_seconds=timeout_seconds,
        prefect_url=os.environ.get("PREFECT_API_URL", ""),
        prefect_source=source,
    )


def _check_plan(request: StudyRequest) -> Finding:
    try:
        context = load_context(request)
    except (ValueError, OSError) as error:
        return broken(
            "plan", str(error), "Correct the parameters or the study; dml check tells all"
        )
    trials = context.study.trials_per_arm
    return ok("plan", f"{request.study}: {len(context.study.arms)} arms, {trials} tries for each")


def _read_records(folder: Path) -> tuple[dict[str, ServerRecord], list[Finding]]:
    try:
        records = load_records(folder)
        for record in records.values():
            sign_in_to_prefect(record)
        return records, []
    except ValueError as error:
        return {}, [broken("servers", str(error), "Correct that file, then run: dml up")]


def _check_records(records: Mapping[str, ServerRecord]) -> list[Finding]:
    dead = [r for r in records.values() if find_process(r.pid, created=r.created) is None]
    return [
        broken(
            "servers",
            f"the {record.title} that dml up started (process {record.pid}) has ended",
            f"Start it again: dml up. Its log: {record.log}",
        )
        for record in dead
    ]


def _print(
    request: StudyRequest, findings: list[Finding], *, seconds: float, as_json: bool
) -> None:
    counts = {s: sum(f.state == s for f in findings) for s in ("ok", "warning", "broken")}
    if as_json:
        head = {"study": request.study, "seconds": round(seconds, 1), **counts}
        print(json.dumps({**head, "findings": [asdict(f) for f in findings]}, indent=2))
        return
    for finding in findings:
        say(f"{finding.state:8} {finding.subject:9} {finding.message}")
        if finding.remedy:
            say(f"{'':18} -> {finding.remedy}")
    say(
        f"{counts['broken']} broken, {counts['warning']} warning(s), {counts['ok']} ok, "
        f"in {seconds:.1f} s"
    )
