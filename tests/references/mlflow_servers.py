"""A real MLflow server on loopback that a test may stop and start again."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path


class MlflowServer:
    """A server over a sqlite file; started again it has the same address and content."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts the server and waits until it answers."""
        storage = ["--backend-store-uri", f"sqlite:///{self.folder}/mlflow.db"]
        storage += ["--default-artifact-root", str(self.folder / "mlartifacts")]
        flags = ["--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"]
        with open(self.folder / "server.log", "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "mlflow", "server", *storage, *flags],
                cwd=self.folder,
                stdout=log,
                stderr=log,
                env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
                start_new_session=True,
            )
        deadline = time.monotonic() + 90
        while not self._answers():
            assert self.process.poll() is None, (self.folder / "server.log").read_text()
            assert time.monotonic() < deadline, "the MLflow server did not start"
            time.sleep(0.3)

    def stop(self) -> None:
        """Kills the server and its workers, as a machine that goes away."""
        if self.process is not None:
            # The group is our own: the server was started as the leader of a new session.
            os.killpg(self.process.pid, 9)
            self.process.wait()
            self.process = None

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.address}/health", timeout=2) as answer:  # noqa: S310
                return bool(answer.status == 200)
        except OSError:
            return False
