"""Real servers on loopback: some that a drill takes down, some that stay up between drills."""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from flows.servers.access import prefect_sign_in
from flows.servers.network import fetch_status, find_free_port
from tests.drills.plan import DrillFailed
from tests.drills.project import change_params
from tests.drills.sweep import BRISK, DrilledSweep
from tests.references.ray_clusters import Cluster

START_SECONDS = 400.0
SIGN_IN = prefect_sign_in(secrets.token_urlsafe(24))
"""Environment variables that sign a sweep in to the Prefect servers of the drills."""
CLUSTER_CPUS = 4
"""CPUs of the shared cluster; ray.max_concurrent of a project limits its concurrent trials."""
_HOST = "127.0.0.1"


class DrillServer:
    """A server over a project's database; a restart keeps its address and content."""

    def __init__(
        self, folder: Path, arguments: list[str], *, health: str, environment: Mapping[str, str]
    ) -> None:
        """Chooses an address.

        Args:
            folder: folder of the project.
            arguments: arguments of Python; host and port are appended.
            health: URL path that answers 200 once the server is ready.
            environment: further environment variables.
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
                # A process in the project's own folder would count as the sweep's.
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
        """Kills the server and its workers, as if its machine went down."""
        if self._process is not None:
            # The server leads its own session, so this is its own group.
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    @contextmanager
    def running(self) -> Iterator["DrillServer"]:
        """Runs the server within the block."""
        try:
            self.start()
            yield self
        finally:
            self.stop()


def mlflow_server(folder: Path) -> DrillServer:
    """Returns an MLflow server over a project's own database."""
    storage = ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
    storage += ["--default-artifact-root", str(folder / "mlartifacts"), "--workers", "1"]
    return DrillServer(
        folder,
        ["-m", "mlflow", "server", *storage],
        health="/health",
        environment={"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
    )


def prefect_server(folder: Path) -> DrillServer:
    """Returns a Prefect server over a project's own database; it requires a password."""
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


class SharedServers:
    """A Prefect server and a Ray cluster that stay up between drills.

    Starting them takes longer than most faults.
    """

    def __init__(self, folder: Path, *, project: Path) -> None:
        """Prepares both.

        Args:
            folder: folder for their files; must not exist.
            project: project with an empty Prefect database.
        """
        shutil.copytree(project / ".dml", folder / ".dml")
        self._prefect = prefect_server(folder)
        self._cluster = Cluster(folder, environment=BRISK, cpus=CLUSTER_CPUS)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Keeps both up within the block."""
        try:
            self._cluster.start_head()
            with self._prefect.running():
                yield
        finally:
            self._cluster.stop()

    def use(self, sweep: DrilledSweep) -> None:
        """Makes a sweep use both."""
        change_params(sweep.folder, {"ray.address": self._cluster.address})
        sweep.environment.update(self._cluster.variables)
        sweep.environment |= {"PREFECT_API_URL": f"{self._prefect.address}/api", **SIGN_IN}
