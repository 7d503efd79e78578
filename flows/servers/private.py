"""A Prefect server for one command: if none is up, or if the one in use goes away."""

import atexit
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from flows.servers.access import prefect_server_settings
from flows.servers.network import fetch_status
from tasks.guardian import guarded_folder
from tasks.secrets import make_owner_only_file, make_owner_only_folder

LOG_NAME = "private-server.log"
_HOST = "127.0.0.1"
_SECONDS_BETWEEN_LOOKS = 0.2
_SOONEST_END_SECONDS = 60.0
"""A server that ends earlier than this after its start counts as a failed start."""
_MOST_STARTS = 5
"""After this many failed starts in a row, the run continues without the server."""
_log = logging.getLogger(__name__)


class PrivateServer:
    """Prefect's own temporary server, started without importing it into this process.

    Prefect would start it by itself, wait for it, and spend seconds on importing the server. Here
    it starts while this process imports its own modules.

    The loss of the server must not stop the run: a server that dies is started again over the same
    database. This process holds the port in the meantime, so that requests wait for the new server;
    without a listener Prefect's client would raise at once.
    """

    def __init__(self, home: Path, *, password: str, port: int = 0, in_place_of: str = "") -> None:
        """Starts the server, or waits in the background until its port is free.

        Args:
            home: folder of Prefect's database.
            password: of the server.
            port: to listen on; 0 takes a free one.
            in_place_of: address of a server that is up now; this one starts when that is gone.
        """
        # The server would outlive a killed command. Not PDEATHSIG: the kernel sends it when the
        # thread that started the child ends, and the guardian also ends grandchildren.
        guarded_folder()
        self._log_file = make_owner_only_file(make_owner_only_folder(home) / LOG_NAME)
        self._password = password
        self._in_place_of = in_place_of
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._is_ending = threading.Event()
        self._port = port
        self._socket: socket.socket | None = None
        self._keeper = threading.Thread(target=self._keep_up, name="private-server", daemon=True)
        if in_place_of:
            self._keeper.start()
        else:
            self._socket = socket.create_server((_HOST, port))
            self._port = int(self._socket.getsockname()[1])
            self._start(self._socket)
        atexit.register(self._end)

    @property
    def api_url(self) -> str:
        """The value for PREFECT_API_URL."""
        return f"http://{_HOST}:{self._port}/api"

    def wait(self, *, timeout_seconds: float) -> None:
        """Returns when the server answers; from then on it is started again when it ends.

        Raises:
            ValueError: if it ends or does not answer in time, with the end of its log.
        """
        deadline = time.monotonic() + timeout_seconds
        while fetch_status(f"{self.api_url}/health") != 200:
            has_ended = self._process is None or self._process.poll() is not None
            if has_ended or time.monotonic() > deadline:
                what = "ended" if has_ended else f"is silent after {timeout_seconds:g} s"
                text = self._log_file.read_text(encoding="utf-8", errors="replace")
                raise ValueError(
                    f"the Prefect server of this command {what}. Start one that stays with: dml up."
                    f" The end of its log, {self._log_file}:\n" + "\n".join(text.splitlines()[-15:])
                )
            time.sleep(0.1)
        self._keeper.start()

    def _keep_up(self) -> None:
        """Starts the server again whenever it ends, until this process ends."""
        failures = 0
        while not self._is_ending.wait(_SECONDS_BETWEEN_LOOKS):
            if self._socket is None:
                self._take_over()
            elif self._process is not None and self._process.poll() is not None:
                lasted = time.monotonic() - self._started
                failures = failures + 1 if lasted < _SOONEST_END_SECONDS else 1
                if failures > _MOST_STARTS:
                    self._give_up()
                    return
                _log.warning(
                    "the Prefect server of this run ended (code %d); it is started again, and the "
                    "run continues",
                    self._process.returncode,
                )
                self._start(self._socket)

    def _take_over(self) -> None:
        """Takes the port of the server that this one replaces, once that is gone."""
        try:
            taken = socket.create_server((_HOST, self._port))
        except OSError:
            return
        self._socket = taken
        _log.warning(
            "the Prefect server at %s is gone; this run starts one in its place, over the same "
            "database, and continues. After the run, start yours again: dml up",
            self._in_place_of,
        )
        self._start(taken)

    def _give_up(self) -> None:
        assert self._socket is not None
        # Without a listener requests fail at once instead of waiting in vain.
        self._socket.close()
        self._socket = None
        _log.error("the Prefect server of this run does not start again; see %s", self._log_file)

    def _start(self, listening: socket.socket) -> None:
        self._started = time.monotonic()
        descriptor = listening.fileno()
        application = ["--factory", "prefect.server.api.server:create_app", "--lifespan", "on"]
        access = prefect_server_settings(self._password, origin=f"http://{_HOST}:{self._port}")
        # A terminal sends Ctrl-C to the server as well. The command needs it until its end: Prefect
        # tries for a minute to report the interrupt. Children inherit the signal mask.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with open(self._log_file, "ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "uvicorn", *application, "--log-level=error",
                     "--fd", str(descriptor)],
                    env={**os.environ, **_ENVIRONMENT, **access},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=[descriptor],
                    umask=0o077,
                )  # fmt: skip
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    def _end(self) -> None:
        self._is_ending.set()
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


# As Prefect starts it: without pages, and without starting another server itself.
_ENVIRONMENT = {
    "PREFECT_UI_ENABLED": "0",
    "PREFECT__SERVER_EPHEMERAL": "1",
    "PREFECT__SERVER_FINAL": "1",
}
