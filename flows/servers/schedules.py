"""Schedules: studies that run by a cron expression, as deployments on the Prefect server."""

import asyncio
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.servers.connect import check_server_answers, use_running_servers, without_credentials
from flows.servers.pages import FLOW_NAME
from flows.servers.plans import WORK_POOL

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.responses import DeploymentResponse

ENTRYPOINT = "flows/ablation.py:ablation"
INSTALLED_ENTRYPOINT = "flows.ablation.ablation"
"""The same flow of the installed code, for a project without sources."""
PREFIX = "study-"
TAG = "dml-schedule"
ENDED = ("COMPLETED", "FAILED", "CRASHED")
"""States of a run that ended by itself."""
EXAMPLES = '"0 2 * * *" (every night at 02:00 UTC), "0 4 * * sun" (Sundays at 04:00 UTC)'


@dataclass(frozen=True)
class Schedule:
    """One deployment with a cron expression."""

    name: str
    """Name of the deployment: study-<name>, or as in prefect.yaml."""
    studies: tuple[str, ...]
    profile: str | None
    cron: str
    timezone: str
    is_active: bool
    next_run: str
    """In UTC, as ISO 8601; empty until the server has planned it."""
    last_run: str
    """State of the newest run that ended; empty before the first."""


@dataclass(frozen=True)
class Created:
    """The result of a new schedule."""

    next_dates: list[datetime]
    has_worker: bool
    """Whether a worker is online to run it."""


def create_schedule(
    study: str,
    *,
    cron: str,
    folder: Path,
    profile: str | None = None,
    entrypoint: str = "",
    parameters: Mapping[str, Any] | None = None,
) -> Created:
    """Schedules a study by a cron expression in UTC; replaces the study's previous schedule.

    One run at a time: a run that comes due while another works is cancelled.

    Args:
        study: name of the study.
        cron: minute, hour, day of month, month, day of week.
        folder: the project folder, in which runs take place.
        profile: the size of the study.
        entrypoint: file and function of the flow, below the folder; by default those of a clone,
            or else the installed flow.
        parameters: of the flow, beside `studies` and `profile`.

    Raises:
        ValueError: if the cron expression is wrong or never comes due, or no server answers.
    """
    entrypoint = entrypoint or choose_entrypoint(folder)
    check_entrypoint(folder, entrypoint)
    dates = check_cron(cron, folder=folder)
    with open_client(folder) as client:
        _ensure_work_pool(client)
        _create_deployment(
            client,
            name=f"{PREFIX}{study}",
            cron=cron,
            folder=folder.resolve(),
            entrypoint=entrypoint,
            parameters={"studies": [study], "profile": profile, **(parameters or {})},
        )
        return Created(dates, _has_worker(client))


def list_schedules(folder: Path) -> list[Schedule]:
    """Returns every deployment of the ablation flow that has a cron schedule, by name."""
    with open_client(folder) as client:
        found = [_describe(client, deployment) for deployment in _deployments(client)]
    return sorted((schedule for schedule in found if schedule), key=lambda s: s.name)


def delete_schedule(study: str, *, folder: Path) -> str:
    """Removes a study's schedule, or the deployment of that name; returns the deployment's name.

    Removes planned runs too; a run that already works continues.

    Raises:
        ValueError: if there is none; with the existing names.
    """
    with open_client(folder) as client:
        deployments = {deployment.name: deployment for deployment in _deployments(client)}
        for name in (f"{PREFIX}{study}", study):
            if name in deployments:
                client.delete_deployment(deployments[name].id)
                return name
    known = ", ".join(name.removeprefix(PREFIX) for name in sorted(deployments)) or "nothing"
    raise ValueError(f"study {study!r} is not scheduled. Scheduled are: {known}.")


def check_cron(cron: str, *, folder: Path) -> list[datetime]:
    """Returns the next dates of a cron expression; raises ValueError if it has none."""
    # Prefect reads the environment when it is imported, and the check of cron imports it.
    use_running_servers(folder)
    return next_dates(cron)


def next_dates(cron: str, *, count: int = 2) -> list[datetime]:
    """Returns the next dates of a cron expression, in UTC.

    Raises:
        ValueError: if it is no cron expression, or never comes due. Prefect's own check accepts
            the 31st of February, and its scheduler then fails on it at every round.
    """
    # The import takes a second.
    from prefect.server.schemas.schedules import CronSchedule

    if not cron.startswith("@") and len(cron.split()) != 5:
        raise ValueError(
            f"--cron must have five fields: minute, hour, day of month, month, day of week. "
            f"Got {cron!r} with {len(cron.split())}. Examples: {EXAMPLES}."
        )
    try:
        schedule = CronSchedule(cron=cron, timezone="UTC")
        dates = asyncio.run(schedule.get_dates(count))
    except Exception as error:
        raise ValueError(
            f"--cron {cron!r} never comes due or is no cron expression. Its fields are minute "
            "(0-59), hour (0-23), day of month (1-31), month (1-12), day of week (0-6 or sun-sat). "
            f"Examples: {EXAMPLES}."
        ) from error
    return list(dates)


def choose_entrypoint(folder: Path) -> str:
    """Returns the flow of a folder's own sources, or else the installed one."""
    is_clone = (folder / ENTRYPOINT.rpartition(":")[0]).is_file()
    return ENTRYPOINT if is_clone else INSTALLED_ENTRYPOINT


def check_entrypoint(folder: Path, entrypoint: str) -> None:
    """Raises FileNotFoundError if the flow's file is not in the folder."""
    if ":" not in entrypoint:
        return
    path = folder / entrypoint.rpartition(":")[0]
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} does not exist, so that a run would have nothing to do. "
            "Run the command in the project's folder."
        )


@contextmanager
def open_client(folder: Path) -> "Iterator[SyncPrefectClient]":
    """Yields a client of the Prefect server that a folder uses.

    Raises:
        ValueError: if there is no server, if it does not answer, or if it refuses.
    """
    use_running_servers(folder)
    api_url = os.environ.get("PREFECT_API_URL", "")
    if not api_url:
        raise ValueError(
            "no Prefect server runs for this folder, and PREFECT_API_URL is not set; "
            "schedules live in a server. Run: dml up --worker"
        )
    check_server_answers(
        api_url, remedy="Start it, or unset PREFECT_API_URL and run: dml up --worker"
    )
    # Only now: prefect reads the environment when it is imported.
    import httpx
    from prefect.client.orchestration import get_client

    try:
        with get_client(sync_client=True) as client:
            yield client
    # A server of another version makes the client raise RuntimeError.
    except (httpx.HTTPError, RuntimeError) as error:
        raise ValueError(
            f"the Prefect server at {without_credentials(api_url)} refused the request: {error}"
        ) from error


def _ensure_work_pool(client: "SyncPrefectClient") -> None:
    """Creates the pool of scheduled runs if it is missing."""
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
    from prefect.workers.process import ProcessWorker

    try:
        client.read_work_pool(WORK_POOL)
    except ObjectNotFound:
        template = ProcessWorker.get_default_base_job_template()
        pool = WorkPoolCreate(name=WORK_POOL, type="process", base_job_template=template)
        try:
            client.create_work_pool(pool)
        except ObjectAlreadyExists:
            return


def _has_worker(client: "SyncPrefectClient") -> bool:
    workers = client.read_workers_for_work_pool(WORK_POOL)
    return any(str(worker.status.value) == "ONLINE" for worker in workers if worker.status)


def _create_deployment(
    client: "SyncPrefectClient",
    *,
    name: str,
    cron: str,
    folder: Path,
    entrypoint: str,
    parameters: dict[str, Any],
) -> None:
    from prefect.client.schemas.actions import DeploymentScheduleCreate
    from prefect.client.schemas.objects import ConcurrencyLimitStrategy, ConcurrencyOptions
    from prefect.client.schemas.schedules import CronSchedule
    from prefect.utilities.callables import parameter_schema_from_entrypoint

    is_file = ":" in entrypoint
    schema = parameter_schema_from_entrypoint(str(folder / entrypoint) if is_file else entrypoint)
    move = {"prefect.deployments.steps.set_working_directory": {"directory": str(folder)}}
    client.create_deployment(
        flow_id=client.create_flow_from_name(FLOW_NAME),
        name=name,
        tags=[TAG],
        entrypoint=entrypoint,
        # Not `path`: Prefect would copy the whole folder, data and all, for each run.
        pull_steps=[move],
        work_pool_name=WORK_POOL,
        job_variables={"working_dir": str(folder)},
        parameters=parameters,
        parameter_openapi_schema=schema.model_dump(),
        # UTC, because a local time occurs twice or never when the clocks change.
        schedules=[
            DeploymentScheduleCreate(schedule=CronSchedule(cron=cron, timezone="UTC"), active=True)
        ],
        concurrency_limit=1,
        concurrency_options=ConcurrencyOptions(
            collision_strategy=ConcurrencyLimitStrategy.CANCEL_NEW
        ),
    )


def _deployments(client: "SyncPrefectClient") -> "list[DeploymentResponse]":
    from prefect.client.schemas.filters import FlowFilter, FlowFilterName

    return client.read_deployments(flow_filter=FlowFilter(name=FlowFilterName(any_=[FLOW_NAME])))


def _describe(client: "SyncPrefectClient", deployment: "DeploymentResponse") -> Schedule | None:
    for entry in deployment.schedules:
        if cron := getattr(entry.schedule, "cron", ""):
            break
    else:
        return None
    next_run, last_run = _next_and_last(client, deployment)
    return Schedule(
        name=deployment.name,
        studies=tuple(deployment.parameters.get("studies", ())),
        profile=deployment.parameters.get("profile"),
        cron=cron,
        timezone=getattr(entry.schedule, "timezone", None) or "UTC",
        is_active=bool(entry.active) and not deployment.paused,
        next_run=next_run,
        last_run=last_run,
    )


def _next_and_last(
    client: "SyncPrefectClient", deployment: "DeploymentResponse"
) -> tuple[str, str]:
    from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId
    from prefect.client.schemas.sorting import FlowRunSort

    runs = client.read_flow_runs(
        deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[deployment.id])),
        sort=FlowRunSort.EXPECTED_START_TIME_DESC,
        limit=200,
    )
    planned = [
        run.expected_start_time
        for run in runs
        if run.state_name == "Scheduled" and run.expected_start_time
    ]
    # A cancelled run met another or was stopped, and says nothing about the study.
    ended = [run for run in runs if run.state_type in ENDED]
    next_run = min(planned).isoformat(timespec="seconds") if planned else ""
    return next_run, (ended[0].state_name or "") if ended else ""
