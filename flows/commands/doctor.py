"""dml doctor: checks everything that a run needs, with a remedy for each problem."""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.terminal import (
    DEFAULT_PARAMS,
    JsonOption,
    ParamsOption,
    ProfileOption,
    SetOption,
    say,
)

if TYPE_CHECKING:
    from flows.doctor.probes import DoctorRequest, Finding
    from flows.servers.record import ServerRecord
    from tasks.study import StudyRequest

HERE = ("python", "sources", "versions", "plan", "ports", "servers")
"""Subjects that need no separate process."""
PortOption = Annotated[
    int | None, typer.Option(help="Port that must be free for `dml up`.", min=1, max=65535)
]
commands = typer.Typer()


@commands.command()
def doctor(
    study: Annotated[str, typer.Argument(help="The study whose plan is checked.")] = "main",
    params: ParamsOption = DEFAULT_PARAMS,
    set_: SetOption = None,
    profile: ProfileOption = None,
    timeout: Annotated[
        float, typer.Option(help="Time limit of a check in seconds; all run at once.", min=1)
    ] = 60.0,
    only: Annotated[
        list[str] | None, typer.Option(help="Check only this subject. Repeatable.")
    ] = None,
    prefect_port: PortOption = None,
    mlflow_port: PortOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check everything that a run needs, with a remedy for each problem; ends with 1 if broken."""
    from flows.doctor.probes import PROBES, run_probes
    from tasks.study import StudyRequest

    request = StudyRequest(
        study=study, profile=profile, params=str(params), overrides=tuple(set_ or ())
    )
    chosen = only or [*HERE, *(probe.name for probe in PROBES)]
    _check_subjects(chosen)
    started = time.monotonic()
    records, findings = _read_records(Path.cwd())
    ports = {"prefect": prefect_port, "mlflow": mlflow_port}
    findings += _check_here(chosen, ports, records)
    # Every probe reads the plan, so that they run only if it is sound.
    plan = _check_plan(request)
    if "plan" in chosen or plan.state == "broken":
        findings.append(plan)
    if plan.state == "ok":
        probes = [probe for probe in PROBES if probe.name in chosen]
        findings += run_probes(probes, _make_request(request, records, timeout_seconds=timeout))
    _print(study, findings, seconds=time.monotonic() - started, as_json=as_json)
    if any(finding.state == "broken" for finding in findings):
        raise SystemExit(1)


def _check_subjects(names: Sequence[str]) -> None:
    from dml_core.config.problems import suggest
    from flows.doctor.probes import PROBES

    known = [*HERE, *(probe.name for probe in PROBES)]
    for name in names:
        if name not in known:
            raise ValueError(
                f"--only must be one of {', '.join(known)}. Got {name!r}.{suggest(name, known)}"
            )


def _check_here(
    chosen: Sequence[str], ports: Mapping[str, int | None], records: "Mapping[str, ServerRecord]"
) -> "list[Finding]":
    """Runs the checks that need no separate process."""
    from flows.doctor.environment import (
        check_ports,
        check_python,
        check_sources,
        check_versions,
        find_installed_tree,
    )

    checks: dict[str, Callable[[], list[Finding]]] = {
        "python": lambda: [check_python()],
        "sources": lambda: [check_sources(Path.cwd(), find_installed_tree())],
        "versions": lambda: [check_versions(Path.cwd())],
        "ports": lambda: check_ports(ports, records),
        "servers": lambda: _check_records(records),
    }
    return [finding for name in checks if name in chosen for finding in checks[name]()]


def _make_request(
    study: "StudyRequest", records: "Mapping[str, ServerRecord]", *, timeout_seconds: float
) -> "DoctorRequest":
    """Returns the request for the probes, with the servers that a run in this folder would use."""
    from flows.doctor.probes import DoctorRequest
    from flows.servers.connect import choose_mlflow, choose_prefect

    source = "PREFECT_API_URL" if os.environ.get("PREFECT_API_URL") else "started by dml up"
    # The probes' processes inherit the addresses and the credentials.
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


def _check_plan(request: "StudyRequest") -> "Finding":
    from flows.doctor.probes import broken, ok
    from tasks.study import load_context

    try:
        context = load_context(request)
    except (ValueError, OSError) as error:
        remedy = "Correct the parameters or the study; dml check lists all problems"
        return broken("plan", str(error), remedy)
    trials = context.study.trials_per_arm
    return ok("plan", f"{request.study}: {len(context.study.arms)} arms, {trials} trials for each")


def _read_records(folder: Path) -> "tuple[dict[str, ServerRecord], list[Finding]]":
    from flows.doctor.probes import broken
    from flows.servers.access import sign_in_to_prefect
    from flows.servers.record import load_records

    try:
        records = load_records(folder)
        for record in records.values():
            sign_in_to_prefect(record)
        return records, []
    except ValueError as error:
        return {}, [broken("servers", str(error), "Correct that file, then run: dml up")]


def _check_records(records: "Mapping[str, ServerRecord]") -> "list[Finding]":
    from flows.doctor.probes import broken

    return [
        broken(
            "servers",
            f"the {record.title} that dml up started (process {record.pid}) has ended",
            f"Start it again: dml up. Its log: {record.log}",
        )
        for record in records.values()
        if not record.is_alive
    ]


def _print(study: str, findings: "list[Finding]", *, seconds: float, as_json: bool) -> None:
    counts = {s: sum(f.state == s for f in findings) for s in ("ok", "warning", "broken")}
    if as_json:
        head = {"study": study, "seconds": round(seconds, 1), **counts}
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
