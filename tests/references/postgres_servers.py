"""A real PostgreSQL server on loopback, of Debian's packages, that a test may kill."""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from flows.servers.network import find_free_port

OWNER = "nobody"
"""PostgreSQL refuses to run as root, so root's tests run it as this user."""


class PostgresServer:
    """A server with an empty database of each given name; everybody on loopback may sign in."""

    def __init__(self, databases: Sequence[str]) -> None:
        self._programs = _find_programs()
        # Not below the folder of the tests, which other users cannot enter.
        self.folder = Path(tempfile.mkdtemp(prefix="dml-postgres-"))
        self.port = find_free_port("127.0.0.1")
        self._process: subprocess.Popen[bytes] | None = None
        if os.geteuid() == 0:
            os.chown(self.folder, pwd.getpwnam(OWNER).pw_uid, -1)
        initial = ("-D", self._data, "-U", "postgres", "--auth=trust", "--no-sync", "-E", "UTF8")
        self._run("initdb", *initial)
        self.start()
        for name in databases:
            self._run("createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", name)

    @property
    def _data(self) -> str:
        return str(self.folder / "data")

    def address(self, database: str, *, driver: str) -> str:
        """Returns the address of a database for SQLAlchemy."""
        return f"postgresql+{driver}://postgres@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Starts the server and waits until it accepts connections; it recovers after a kill."""
        options = ("-h", "127.0.0.1", "-k", str(self.folder), "-p", str(self.port))
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [str(self._programs / "postgres"), "-D", self._data, *options],
                stdout=log, stderr=log, start_new_session=True, **_as_owner(),
            )  # fmt: skip
        deadline = time.monotonic() + 60
        while not self._accepts():
            assert self._process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < deadline, "PostgreSQL does not answer"
            time.sleep(0.1)

    def kill(self) -> None:
        """Kills the server with all its processes, as a machine that loses its power."""
        if self._process is not None:
            # The group is our own: the server was started as the leader of a new session.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def remove(self) -> None:
        """Kills the server and removes its files."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _accepts(self) -> bool:
        asked = ("-q", "-h", "127.0.0.1", "-p", str(self.port))
        return (
            subprocess.run([str(self._programs / "pg_isready"), *asked], check=False).returncode
            == 0
        )

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._programs / program), *arguments],
            capture_output=True, text=True, check=False, cwd=self.folder, **_as_owner(),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr


@contextmanager
def postgres_server(*databases: str) -> Iterator[PostgresServer]:
    """Yields a running server with empty databases; skips the test where there is none."""
    server = PostgresServer(databases)
    try:
        yield server
    finally:
        server.remove()


def _as_owner() -> dict[str, object]:
    if os.geteuid() != 0:
        return {}
    return {"user": OWNER, "group": pwd.getpwnam(OWNER).pw_gid, "extra_groups": []}


def _find_programs() -> Path:
    """Returns the folder of PostgreSQL's programs, with the extensions that Prefect needs.

    The servers that PyPI carries lack one of them, pg_trgm.
    """
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not installed:
        pytest.skip("no PostgreSQL on this machine: apt-get install postgresql")
    return installed[-1].parent
