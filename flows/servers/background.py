"""Starts servers in the background and ends them."""

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import psutil

from flows.servers.access import address_with_password, authorization, sign_in_to_prefect
from flows.servers.health import answers
from flows.servers.orphans import close_runs
from flows.servers.plans import (
    ServerPlan,
    make_worker_name,
    plan_mlflow,
    plan_prefect,
    plan_worker,
    prefect_home,
)
from flows.servers.ports import check_port_is_free, find_free_port
from flows.servers.processes import (
    end_processes,
    find_family,
    find_marked,
    find_process,
    start_detached,
)
from flows.servers.record import (
    ServerRecord,
    load_records,
    locked,
    make_state_folder,
    save_records,
    state_folder,
)
from tasks.owner_only import make_owner_only_file, make_owner_only_folder
from tasks.tracking.address import ARTIFACT_FOLDER, DATABASE_FILE

Say = Callable[[str], None]
# The worker goes first, so that what it runs can still tell the Prefect server how it ended.
ENDING_ORDER = ("worker", "mlflow", "prefect")


def start_servers(
    folder: Path,
    *,
    host: str,
    prefect_port: int,
    mlflow_port: int,
    with_worker: bool,
    timeout_seconds: float,
    on_message: Say,
) -> dict[str, ServerRecord]:
    """Starts what is not up yet, waits until all of it answers, and returns the record.

    Running it twice is safe. When something does not come up, what this call started is ended.

    Raises:
        BusyPortError: before anything is started.
        ValueError: when a server ends, or does not answer in time; with the end of its log.
    """
    with locked(folder):
        records = _forget_dead(folder)
        ports = {"prefect": prefect_port, "mlflow": mlflow_port}
        plans = _plan_missing(folder, records, host=host, ports=ports)
        before = set(records)
        try:
            _start(folder, plans, records, on_message=on_message)
            _wait_for(records.values(), timeout_seconds=timeout_seconds)
            if "worker" not in records:
                _close_left_runs(folder, records)
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
    """Ends what `start_servers` started in a folder, and nothing else; returns what was ended."""
    with locked(folder):
        records = load_records(folder)
        ended = [records[name] for name in ENDING_ORDER if name in records]
        _end(folder, records, names=set(records))
        return ended


def _forget_dead(folder: Path) -> dict[str, ServerRecord]:
    """Returns the records of living programs; of dead ones, what they left behind is ended."""
    records = load_records(folder)
    dead = {
        name
        for name, record in records.items()
        if find_process(record.pid, created=record.created) is None
    }
    _end(folder, records, names=dead)
    return records


def _plan_missing(
    folder: Path, records: dict[str, ServerRecord], *, host: str, ports: dict[str, int]
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
        plans.append(plan_mlflow(folder, host=host, port=chosen["mlflow"]))
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
        # At once, so that a killed `dml up` leaves nothing that `dml down` does not find.
        save_records(folder, records)


def _make_storage(folder: Path) -> None:
    """Makes what the servers write to, for the owner alone, also where it was open before."""
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
    )


def _wait_for(records: Iterable[ServerRecord], *, timeout_seconds: float) -> None:
    deadline = time.monotonic() + timeout_seconds
    for record in list(records):
        while not answers(record):
            if find_process(record.pid, created=record.created) is None:
                raise ValueError(f"the {record.title} ended while it started. {_tell_log(record)}")
            if time.monotonic() > deadline:
                raise ValueError(
                    f"the {record.title} does not answer at {record.address} after "
                    f"{timeout_seconds:g} s. {_tell_log(record)}\n"
                    "On a slow machine give it longer: dml up --timeout 300"
                )
            time.sleep(0.2)


def _tell_log(record: ServerRecord, *, num_lines: int = 15) -> str:
    lines = Path(record.log).read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join([f"The end of its log, {record.log}:", *lines[-num_lines:]])


def _end(folder: Path, records: dict[str, ServerRecord], *, names: set[str]) -> None:
    for name in ENDING_ORDER:
        if name in names:
            end_processes(partial(_find_all, records.pop(name)))
            save_records(folder, records)
            if name == "worker":
                _close_left_runs(folder, records)


def _find_all(record: ServerRecord) -> list[psutil.Process]:
    found = find_family(record.pid, created=record.created)
    if record.worker_name:
        # Runs have sessions of their own and outlive a worker that was killed. Prefect names the
        # worker in their environment, and what they start inherits it.
        found += find_marked("PREFECT__WORKER_NAME", record.worker_name)
    return found


def _close_left_runs(folder: Path, records: dict[str, ServerRecord]) -> None:
    # Without its password there is no way in, and `dml down` ends the rest all the same.
    with contextlib.suppress(ValueError):
        if server := records.get("prefect"):
            close_runs(
                f"{server.address}/api",
                worker_name=make_worker_name(folder),
                headers=authorization(sign_in_to_prefect(server)),
            )
