"""Schedules: a study that runs again and again, as a deployment on the Prefect server."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.servers.cron import next_dates
from flows.servers.plans import WORK_POOL
from flows.servers.prefect_api import ensure_work_pool, has_worker, open_client
from flows.servers.registry import use_running_servers

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.responses import DeploymentResponse

ENTRYPOINT = "flows/ablation.py:ablation"
FLOW_NAME = "ablation"
PREFIX = "study-"
TAG = "dml-schedule"
ENDED = ("COMPLETED", "FAILED", "CRASHED")
"""States in which a run has come to an end by itself."""


@dataclass(frozen=True)
class Schedule:
    """One deployment that comes due by a cron expression."""

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
    """How the newest run that came to an end went, by the name of its state; empty before."""


@dataclass(frozen=True)
class Created:
    """What came of a new schedule."""

    next_dates: list[datetime]
    has_worker: bool
    """Whether a worker is there to run it."""


def create_schedule(
    study: str,
    *,
    cron: str,
    folder: Path,
    profile: str | None = None,
    entrypoint: str = ENTRYPOINT,
    parameters: Mapping[str, Any] | None = None,
) -> Created:
    """Lets a study run by a cron expression in UTC; a schedule that the study has is replaced.

    At most one run at a time: one that comes due while another works is cancelled.

    Args:
        study: name of the study.
        cron: minute, hour, day of month, month, day of week.
        folder: the project folder, in which runs take place.
        profile: sizes to run it with.
        entrypoint: file and function of the flow, below the folder.
        parameters: given to the flow beside `studies` and `profile`.

    Raises:
        ValueError: when the cron expression is wrong or never comes due; when no server answers.
    """
    check_entrypoint(folder, entrypoint)
    dates = check_cron(cron, folder=folder)
    with open_client(folder) as client:
        ensure_work_pool(client)
        _create_deployment(
            client,
            name=f"{PREFIX}{study}",
            cron=cron,
            folder=folder.resolve(),
            entrypoint=entrypoint,
            parameters={"studies": [study], "profile": profile, **(parameters or {})},
        )
        return Created(dates, has_worker(client))


def check_cron(cron: str, *, folder: Path) -> list[datetime]:
    """Returns when a cron expression comes due next; raises ValueError when it is none."""
    # Prefect reads the environment when it is imported, and the check of cron imports it.
    use_running_servers(folder)
    return next_dates(cron)


def list_schedules(folder: Path) -> list[Schedule]:
    """Returns every deployment of the ablation flow that has a cron schedule, by name."""
    with open_client(folder) as client:
        found = [_describe(client, deployment) for deployment in _deployments(client)]
    return sorted((schedule for schedule in found if schedule), key=lambda s: s.name)


def delete_schedule(study: str, *, folder: Path) -> str:
    """Removes a study's schedule, or the deployment of that name; returns the deployment's name.

    Planned runs go with it; one that already works goes on.

    Raises:
        ValueError: when there is none; with the names there are.
    """
    with open_client(folder) as client:
        deployments = {deployment.name: deployment for deployment in _deployments(client)}
        for name in (f"{PREFIX}{study}", study):
            if name in deployments:
                client.delete_deployment(deployments[name].id)
                return name
    known = ", ".join(name.removeprefix(PREFIX) for name in sorted(deployments)) or "nothing"
    raise ValueError(f"study {study!r} is not scheduled. What is scheduled: {known}.")


def check_entrypoint(folder: Path, entrypoint: str) -> None:
    """Raises FileNotFoundError when the flow's file is not in the folder."""
    path = folder / entrypoint.rpartition(":")[0]
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} does not exist, so that a run would have nothing to do. "
            "Run the command in the project's folder."
        )


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

    schema = parameter_schema_from_entrypoint(str(folder / entrypoint))
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
        # UTC, because in the night when clocks change a local time comes twice or not at all.
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
    # A cancelled one met another, or somebody stopped it: it says nothing of how the study went.
    ended = [run for run in runs if run.state_type in ENDED]
    next_run = min(planned).isoformat(timespec="seconds") if planned else ""
    return next_run, (ended[0].state_name or "") if ended else ""
