"""Questions to a Prefect server, for tests."""

from typing import Any

from tests.references.running_servers import call_api


def read_deployments(api: str) -> dict[str, Any]:
    """Returns the deployments by name."""
    return {d["name"]: d for d in call_api(f"{api}/deployments/filter", {})}


def read_runs(api: str, deployment: str) -> list[dict[str, Any]]:
    """Returns the runs of a deployment, in the order of their times."""
    wanted = {"deployments": {"name": {"any_": [deployment]}}, "sort": "EXPECTED_START_TIME_ASC"}
    return call_api(f"{api}/flow_runs/filter", wanted)


def read_artifacts(api: str) -> dict[str, Any]:
    """Returns the newest artifacts by key."""
    found = call_api(f"{api}/artifacts/latest/filter", {})
    return {artifact["key"]: artifact for artifact in found}


def start_run(api: str, deployment: str, name: str) -> str:
    """Asks for a run now and returns its id."""
    found = read_deployments(api)[deployment]
    content = {"name": name, "state": {"type": "SCHEDULED"}}
    return call_api(f"{api}/deployments/{found['id']}/create_flow_run", content)["id"]


def read_state(api: str, run: str) -> str:
    """Returns the kind of state that a run is in."""
    return call_api(f"{api}/flow_runs/{run}")["state"]["type"]
