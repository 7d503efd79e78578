"""Starts servers in the background and ends them.

`prefect server start --background` is not used: its output goes to a pipe without a reader, and
its pid file has no start time, so that neither a log nor a safe end would be possible.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from flows.servers.access import address_with_password, authorization, sign_in_to_prefect
from flows.servers.connect import answers
from flows.servers.network import NoAnswer, ask, check_port_is_free, find_free_port
from flows.servers.plans import (
    WORK_POOL,
    ServerPlan,
    make_worker_name,
    plan_mlflow,
    plan_prefect,
    plan_worker,
)
from flows.servers.processes import end_processes, find_family, find_marked, start_detached
from flows.servers.record import (
    ServerRecord,
    load_records,
    locked,
    make_state_folder,
    prefect_home,
    save_records,
    state_folder,
)
from tasks.secrets import make_owner_only_file, make_owner_only_folder
from tasks.tracking.address import ARTIFACT_FOLDER, DATABASE_FILE

Say = Callable[[str], None]
# The worker ends first, so that its runs can still report their end to the Prefect server.
ENDING_ORDER = ("worker", "mlflow", "prefect")
UNFINISHED = ["PENDING", "RUNNING", "CANCELLING"]
CRASHED = {
    "type": "CRASHED",
    "name": "Crashed",
    "message": "The worker of this run was ended, by dml down or with its machine.",
}


def start_servers(
    folder: Path,
    *,
    host: str,
    prefect_port: int,
    mlflow_port: int,
    with_worker: bool,
    timeout_seconds: float,
    on_message: Say,
    public_name: str = "",
) -> dict[str, ServerRecord]:
    """Starts the servers that are not up, waits until all answer, and returns the records.

    Running it twice is safe. If a server does not come up, ends all that this call started.
    `public_name` is the host name by which a proxy with TLS serves them; empty for none.

    Raises:
        BusyPortError: before anything starts.
        ValueError: if a server ends, or does not answer in time; with the end of its log.
    """
    with locked(folder):
        records = _forget_dead(folder)
        ports = {"prefect": prefect_port, "mlflow": mlflow_port}
        plans = _plan_missing(folder, records, host=host, ports=ports, public_name=public_name)
        before = set(records)
        try:
            _start(folder, plans, records, on_message=on_message)
            _wait_for(records.values(), timeout_seconds=timeout_seconds)
            if "worker" not in records:
                _close_orphaned_runs(folder, records)
            if with_worker and "worker" not in records:
                worker = plan_worker(
                    folder,
                    prefect=records["prefect"].address,
                    mlflow=address_with_password(records["mlflow"]),
                )
                _start(folder, [worker], records, on_message=on_message)
                _wait_for([records["worker"]], timeout_seconds=timeout_seconds)
        except BaseException:
            _end(folder, records, names=set(records) - before)
            raise
        return records


def stop_servers(folder: Path) -> list[ServerRecord]:
    """Ends the servers that `start_servers` started in a folder; returns their records."""
    with locked(folder):
        records = load_records(folder)
        ended = [records[name] for name in ENDING_ORDER if name in records]
        _end(folder, records, names=set(records))
        return ended


def _forget_dead(folder: Path) -> dict[str, ServerRecord]:
    """Returns the records of living programs; ends the children that dead ones left behind."""
    records = load_records(folder)
    _end(folder, records, names={name for name in records if not records[name].is_alive})
    return records


def _plan_missing(
    folder: Path,
    records: dict[str, ServerRecord],
    *,
    host: str,
    ports: dict[str, int],
    public_name: str,
) -> list[ServerPlan]:
    if ports["prefect"] == ports["mlflow"] != 0:
        raise ValueError(
            f"--prefect-port and --mlflow-port are both {ports['mlflow']}, but two servers cannot "
            "share a port. Choose two, or 0 for free ones."
        )
    chosen: dict[str, int] = {}
    for name, title in (("prefect", "Prefect server"), ("mlflow", "MLflow server")):
        if name in records:
            continue
        port = ports[name] or _find_other_port(host, taken=[*ports.values(), *chosen.values()])
        check_port_is_free(port, host=host, title=title, option=f"--{name}-port")
        chosen[name] = port
    plans = []
    if "prefect" in chosen:
        plans.append(plan_prefect(folder, host=host, port=chosen["prefect"]))
    if "mlflow" in chosen:
        plans.append(plan_mlflow(folder, host=host, port=chosen["mlflow"], public_name=public_name))
    return plans


def _find_other_port(host: str, *, taken: Sequence[int]) -> int:
    while (port := find_free_port(host)) in taken:
        pass
    return port


def _start(
    folder: Path,
    plans: Sequence[ServerPlan],
    records: dict[str, ServerRecord],
    *,
    on_message: Say,
) -> None:
    _make_storage(folder)
    for plan in plans:
        on_message(f"starting the {plan.title}")
        log = state_folder(folder) / "logs" / f"{plan.name}.log"
        environment = {**os.environ, **plan.environment}
        process = start_detached(plan.command, environment=environment, folder=folder, log=log)
        records[plan.name] = _make_record(plan, process, log)
        # At once, so that `dml down` finds everything that a killed `dml up` leaves.
        save_records(folder, records)


def _make_storage(folder: Path) -> None:
    """Makes the files and folders of the servers, and closes them to other users."""
    make_state_folder(folder)
    # The Prefect server does not make this folder itself, and fails to open its database.
    make_owner_only_folder(prefect_home(folder))
    make_owner_only_folder(state_folder(folder) / "logs")
    make_owner_only_file(folder / DATABASE_FILE)
    make_owner_only_folder(folder / ARTIFACT_FOLDER)


def _make_record(plan: ServerPlan, process: psutil.Process, log: Path) -> ServerRecord:
    return ServerRecord(
        name=plan.name,
        title=plan.title,
        pid=process.pid,
        created=process.create_time(),
        address=plan.address,
        health_url=plan.health_url,
        log=str(log),
        worker_name=plan.worker_name,
        password_file=plan.password_file,
        has_other_database=plan.has_other_database,
    )


def _wait_for(records: Iterable[ServerRecord], *, timeout_seconds: float) -> None:
    deadline = time.monotonic() + timeout_seconds
    for record in list(records):
        while not answers(record):
            if not record.is_alive:
                raise ValueError(f"the {record.title} ended while it started. {_quote_log(record)}")
            if time.monotonic() > deadline:
                raise ValueError(
                    f"the {record.title} does not answer at {record.address} after "
                    f"{timeout_seconds:g} s. {_quote_log(record)}\n"
                    "On a slow machine give it longer: dml up --timeout 300"
                )
            time.sleep(0.2)


def _quote_log(record: ServerRecord, *, num_lines: int = 15) -> str:
    lines = Path(record.log).read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join([f"The end of its log, {record.log}:", *lines[-num_lines:]])


def _end(folder: Path, records: dict[str, ServerRecord], *, names: set[str]) -> None:
    for name in ENDING_ORDER:
        if name in names:
            end_processes(partial(_find_all, records.pop(name)))
            save_records(folder, records)
            if name == "worker":
                _close_orphaned_runs(folder, records)


def _find_all(record: ServerRecord) -> list[psutil.Process]:
    found = find_family(record.pid, created=record.created)
    if record.worker_name:
        # Runs have their own sessions and outlive a killed worker. Prefect names the worker in
        # their environment, and their children inherit it.
        found += find_marked("PREFECT__WORKER_NAME", record.worker_name)
    return found


def _close_orphaned_runs(folder: Path, records: dict[str, ServerRecord]) -> None:
    """Marks the unfinished runs of a worker that is gone as crashed, with their subflows.

    Prefect would show them as running for ever. A schedule allows one run at a time, so that an
    orphan would also cancel every later run.
    """
    # Without the password or an answer the runs stay as they are; `dml down` ends the rest.
    with contextlib.suppress(ValueError, NoAnswer):
        if server := records.get("prefect"):
            post = partial(
                _post, f"{server.address}/api", authorization(sign_in_to_prefect(server))
            )
            runs = _find_unfinished(post, {"work_pools": {"name": {"any_": [WORK_POOL]}}})
            for run in runs:
                if (run.get("labels") or {}).get("prefect.worker.name") == make_worker_name(folder):
                    _mark_crashed(post, run)


def _mark_crashed(post: Callable[..., Any], run: dict[str, Any]) -> None:
    children = {"flow_runs": {"parent_flow_run_id": {"any_": [run["id"]]}}}
    for child in _find_unfinished(post, children):
        _mark_crashed(post, child)
    post(f"/flow_runs/{run['id']}/set_state", {"state": CRASHED, "force": True})


def _find_unfinished(post: Callable[..., Any], filters: dict[str, Any]) -> list[dict[str, Any]]:
    flow_runs = {**filters.get("flow_runs", {}), "state": {"type": {"any_": UNFINISHED}}}
    found: list[dict[str, Any]] = post("/flow_runs/filter", {**filters, "flow_runs": flow_runs})
    return found


def _post(api_url: str, headers: Mapping[str, str], path: str, content: dict[str, Any]) -> Any:
    for pause_seconds in (0.5, 1.0, 2.0, 4.0, 0.0):
        answer = ask(
            "POST", f"{api_url}{path}", timeout_seconds=10.0, content=content, headers=headers
        )
        if answer.status < 300:
            return answer.content
        # The server answers 503 while another request writes to its sqlite database.
        if answer.status != 503:
            break
        time.sleep(pause_seconds)
    raise NoAnswer(f"{path} was refused with status {answer.status}")
