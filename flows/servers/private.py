"""A Prefect server of one command alone, for where none is up."""

import atexit
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from flows.servers.health import fetch_status
from flows.servers.ports import find_free_port
from tasks.guardian import guarded_folder

LOG_NAME = "private-server.log"
_HOST = "127.0.0.1"
_ENDED_BY_BUSY_PORT = 3
"""What uvicorn ends with when somebody else took the port in the meantime."""


class PrivateServer:
    """Prefect's own temporary server, started without importing it into this process.

    Prefect would start it by itself, wait for it, and spend seconds on importing all of a server;
    here it comes up while this process imports what it needs.
    """

    def __init__(self, home: Path) -> None:
        # It would outlive a killed command.
        guarded_folder()
        home.mkdir(parents=True, exist_ok=True)
        self._log = home / LOG_NAME
        self._start()
        atexit.register(self._end)

    @property
    def api_url(self) -> str:
        """What PREFECT_API_URL has to be."""
        return f"http://{_HOST}:{self._port}/api"

    def wait(self, *, timeout_seconds: float) -> None:
        """Returns when the server answers.

        Raises:
            ValueError: when it ends or does not answer in time, with the end of its log.
        """
        deadline = time.monotonic() + timeout_seconds
        while fetch_status(f"{self.api_url}/health") != 200:
            ended = self._process.poll()
            if ended == _ENDED_BY_BUSY_PORT:
                self._start()
            elif ended is not None or time.monotonic() > deadline:
                what = "ended" if ended is not None else f"is silent after {timeout_seconds:g} s"
                lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
                raise ValueError(
                    f"the Prefect server of this command {what}. Start one that stays with: dml up."
                    f" The end of its log, {self._log}:\n" + "\n".join(lines)
                )
            time.sleep(0.1)

    def _start(self) -> None:
        self._port = find_free_port(_HOST)
        address = ["--host", _HOST, "--port", str(self._port)]
        application = ["--factory", "prefect.server.api.server:create_app", "--lifespan", "on"]
        # A terminal sends Ctrl-C to it as well, and without it the command could not end: Prefect
        # asks it for a minute to take note of that. Children inherit which signals are held back.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with open(self._log, "ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "uvicorn", *application, *address, "--log-level=error"],
                    env={**os.environ, **_ENVIRONMENT},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    def _end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


# As Prefect starts it: without pages, and as the last process that may start a server.
_ENVIRONMENT = {
    "PREFECT_UI_ENABLED": "0",
    "PREFECT__SERVER_EPHEMERAL": "1",
    "PREFECT__SERVER_FINAL": "1",
}
