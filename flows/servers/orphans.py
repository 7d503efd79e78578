"""Runs whose worker is gone: without help they would be shown as running for ever.

A schedule lets one run work at a time, so that such a run would also have the next ones cancelled.
"""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from flows.servers.health import open_url
from flows.servers.plans import WORK_POOL

Post = Callable[[str, dict[str, Any]], Any]
"""Sends JSON to a path of the API and returns the JSON of the answer."""
UNFINISHED = ["PENDING", "RUNNING", "CANCELLING"]
MESSAGE = "The worker that ran this was ended, by dml down or with its machine."


def close_runs(api_url: str, *, worker_name: str, headers: Mapping[str, str]) -> int:
    """Marks the unfinished runs of a worker that is gone as crashed, with their subflows.

    Args:
        api_url: of the Prefect server.
        worker_name: of the worker that is gone.
        headers: which sign in to the server.

    Returns:
        How many there were; 0 also when the server does not answer.
    """
    try:
        post = partial(_post, api_url, headers)
        runs = _find_runs(post, {"work_pools": {"name": {"any_": [WORK_POOL]}}})
        orphans = [run for run in runs if _worker_of(run) == worker_name]
        for run in orphans:
            _close(post, run)
    except (OSError, ValueError):
        return 0
    return len(orphans)


def _close(post: Post, run: dict[str, Any]) -> None:
    children = {"flow_runs": {"parent_flow_run_id": {"any_": [run["id"]]}}}
    for child in _find_runs(post, children):
        _close(post, child)
    state = {"type": "CRASHED", "name": "Crashed", "message": MESSAGE}
    post(f"/flow_runs/{run['id']}/set_state", {"state": state, "force": True})


def _find_runs(post: Post, filters: dict[str, Any]) -> list[dict[str, Any]]:
    flow_runs = {**filters.get("flow_runs", {}), "state": {"type": {"any_": UNFINISHED}}}
    found: list[dict[str, Any]] = post("/flow_runs/filter", {**filters, "flow_runs": flow_runs})
    return found


def _worker_of(run: dict[str, Any]) -> str:
    return str((run.get("labels") or {}).get("prefect.worker.name", ""))


def _post(api_url: str, headers: Mapping[str, str], path: str, content: dict[str, Any]) -> Any:
    request = urllib.request.Request(  # noqa: S310
        f"{api_url}{path}",
        data=json.dumps(content).encode(),
        headers={"Content-Type": "application/json", **headers},
    )
    for pause_seconds in (0.5, 1.0, 2.0, 4.0, None):
        try:
            with open_url(request, timeout_seconds=10.0) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            # The server answers 503 while something else writes to its sqlite database.
            if error.code != 503 or pause_seconds is None:
                raise
            time.sleep(pause_seconds)
    raise AssertionError("the last attempt returns or raises")
