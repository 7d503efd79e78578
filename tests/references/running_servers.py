"""Runs the command line in a separate folder and calls servers, for tests of servers."""

import base64
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from flows.servers.access import USER, password_file, read_password

DML = Path(sys.executable).with_name("dml")


def make_project(folder: Path) -> Path:
    """Makes a folder for servers, with its own home."""
    (folder / "home").mkdir(parents=True)
    return folder


def make_environment(folder: Path, **extra: str) -> dict[str, str]:
    """Returns an environment that knows no server, with the folder's own home."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PREFECT", "MLFLOW"))
    }
    # Looking for work every second instead of every ten keeps the tests short.
    short = {"PREFECT_WORKER_QUERY_SECONDS": "1", "PREFECT_WORKER_PREFETCH_SECONDS": "1"}
    return {**kept, **short, "HOME": str(folder / "home"), "OMP_NUM_THREADS": "1", **extra}


def run_dml(folder: Path, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    """Runs a dml command in a folder, with names and values added to its environment."""
    return subprocess.run(
        [str(DML), *arguments],
        cwd=folder,
        env=make_environment(folder, **extra),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def read_status(folder: Path) -> dict[str, dict[str, Any]]:
    """Returns what `dml status --json` says, by server."""
    content = json.loads(run_dml(folder, "status", "--json").stdout)
    return {server["name"]: server for server in content["servers"]}


def sign_in(folder: Path, address: str) -> str:
    """Returns the address of a folder's server with user and password, for `call_api`."""
    parts = urlsplit(address)
    password = read_password(password_file(folder))
    return parts._replace(netloc=f"{USER}:{password}@{parts.netloc}").geturl()


def prefect_variables(folder: Path) -> dict[str, str]:
    """Returns the variables by which programs of Prefect itself use a folder's server."""
    return {
        "PREFECT_API_URL": f"{read_status(folder)['prefect']['address']}/api",
        "PREFECT_API_AUTH_STRING": f"{USER}:{read_password(password_file(folder))}",
        "PREFECT_HOME": str(folder / ".dml" / "prefect"),
    }


def call_api(url: str, content: dict[str, Any] | None = None) -> Any:
    """Sends JSON, or asks, as the user that the address names; returns the JSON of the answer."""
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    data = None if content is None else json.dumps(content).encode()
    headers = {"Content-Type": "application/json"}
    if user:
        headers["Authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
    request = urllib.request.Request(  # noqa: S310
        parts._replace(netloc=host).geturl(), data=data, headers=headers
    )
    for attempt in range(10):
        try:
            with urllib.request.urlopen(request, timeout=20) as response:  # noqa: S310
                return json.load(response)
        except urllib.error.HTTPError as error:
            # As Prefect's own client does: 503 means that the database is being written to.
            if error.code != 503 or attempt == 9:
                raise
            time.sleep(0.5)
    return None


def wait_for(condition: Callable[[], Any], *, seconds: float) -> Any:
    """Returns the first true value of a condition, or its last one when the time is over."""
    deadline = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(0.25)
    return value
