"""Real servers on loopback that a drill takes away and brings back."""

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from flows.drills.fault import DrillFailed
from flows.servers.access import prefect_sign_in
from flows.servers.network import fetch_status, find_free_port

START_SECONDS = 400.0
SIGN_IN = prefect_sign_in(secrets.token_urlsafe(24))
"""What a sweep needs in its environment to use the drills' Prefect servers."""
_HOST = "127.0.0.1"


class DrillServer:
    """A server over a project's database; started again it has the same address and content."""

    def __init__(
        self, folder: Path, arguments: list[str], *, health: str, environment: Mapping[str, str]
    ) -> None:
        """Chooses an address.

        Args:
            folder: the project.
            arguments: of Python; the port is added to them.
            health: path that answers 200 once the server can be used.
            environment: more variables.
        """
        self.port = find_free_port(_HOST)
        self.address = f"http://{_HOST}:{self.port}"
        self._folder = folder
        self._command = [sys.executable, *arguments, "--host", _HOST, "--port", str(self.port)]
        self._health = f"{self.address}{health}"
        self._environment = {**os.environ, **environment}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the server and waits until it answers."""
        log_file = self._folder / f"server-{self.port}.log"
        with open(log_file, "ab") as log:
            self._process = subprocess.Popen(
                self._command,
                # Whatever works in the project's own folder counts as the sweep's.
                cwd=self._folder.parent,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        while fetch_status(self._health) != 200:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise DrillFailed(f"a server of the drill does not start, see {log_file}")
            time.sleep(0.2)

    def stop(self) -> None:
        """Kills the server and its workers, as a machine that goes away."""
        if self._process is not None:
            # The group is its own: it was started as the leader of a new session.
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    @contextmanager
    def running(self) -> Iterator["DrillServer"]:
        """Runs the server for the block."""
        try:
            self.start()
            yield self
        finally:
            self.stop()


def mlflow_server(folder: Path) -> DrillServer:
    """Returns a server of MLflow over a project's own database."""
    storage = ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
    storage += ["--default-artifact-root", str(folder / "mlartifacts"), "--workers", "1"]
    return DrillServer(
        folder,
        ["-m", "mlflow", "server", *storage],
        health="/health",
        environment={"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
    )


def prefect_server(folder: Path) -> DrillServer:
    """Returns a server of Prefect over a project's own database; it asks for a password."""
    return DrillServer(
        folder,
        ["-m", "uvicorn", "--factory", "prefect.server.api.server:create_app", "--lifespan", "on"],
        health="/api/health",
        environment={
            "PREFECT_HOME": str(folder / ".dml" / "prefect"),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_UI_ENABLED": "0",
            "PREFECT_SERVER_API_AUTH_STRING": SIGN_IN["PREFECT_API_AUTH_STRING"],
            **SIGN_IN,
        },
    )
