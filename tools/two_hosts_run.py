"""Makes two hosts, starts what runs on them, and runs the study."""

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tools.hosts import Host, ProgramEnded, wait_for_text
from tools.two_hosts_project import make_project

PROGRAMS = Path(sys.executable).parent
PATIENCE_SECONDS = 600.0
ADDRESS_A, ADDRESS_B = "10.77.0.1", "10.77.0.2"
RAY, MLFLOW = f"{ADDRESS_A}:6379", f"{ADDRESS_A}:5000"
REMOTE = f"http://{ADDRESS_B}:8000"
ON_BOTH = {
    "ray.address": RAY,
    "data_access.mode": "dvc",
    "mlflow.tracking_uri": f"http://{MLFLOW}",
}
ALONE = {"ray.address": "local"}
ATTEMPTS = 4
"""How often the hosts are made: a Ray node that takes 15 s for a part of its start ends itself."""
SLOW_START = "node timed out during startup"
"""What Ray says then."""
_STOPS = (signal.SIGINT, signal.SIGTERM)
_UNWANTED = ("RAY_", "MLFLOW_", "PREFECT_", "DML_", "DVC_", "AWS_")

Say = Callable[[str], None]


class TwoHosts:
    """Two hosts joined by a cable, and a third one without any, for comparison."""

    def __init__(self, say: Say, *, command: Sequence[str], databases: Path | None) -> None:
        """Prepares the hosts; entering makes them.

        Args:
            say: gets each line of what happens.
            command: the words after `dml` that run the study.
            databases: holds empty databases of Prefect and MLflow; None lets them be made.
        """
        self.root = Path(tempfile.mkdtemp(prefix="2h-"))
        self.shared = self.root / "shared"
        """What a shared disk would be: both hosts see it."""
        self.project = self.shared / "project"
        self.storage = self.root / "b" / "storage"
        self.say = say
        self._command = command
        self._databases = databases
        environment = self._make_environment()
        self.a, self.b, self.alone = (
            Host(f"host-{name}", address, folder=self.root / name,
                 environment={**environment, "HOME": str(self.root / name / "home")})
            for name, address in (("a", ADDRESS_A), ("b", ADDRESS_B), ("alone", "127.0.0.1"))
        )  # fmt: skip

    def __enter__(self) -> "TwoHosts":
        try:
            self._make_files()
            for left in reversed(range(ATTEMPTS)):
                try:
                    self._make_hosts()
                    return self
                except ProgramEnded as error:
                    if not left:
                        raise
                    self._stop_hosts()
                    self.say(f"once more, since {str(error).splitlines()[0]}")
        except BaseException:
            self.__exit__()
            raise
        raise AssertionError

    def __exit__(self, *_: object) -> None:
        # A second Ctrl-C must not leave half of it.
        with _deaf():
            self._stop_hosts()
            shutil.rmtree(self.root, ignore_errors=True)

    def run_study(self) -> None:
        """Runs the study over both hosts, and the same study on the third."""
        own = (self.project / "data", self.project / ".dvc")
        self._run(self.a, self.project, ON_BOTH, uncovered=own)
        for host in (self.a, self.b):
            host.stop()
        self._run(self.alone, self.root / "alone" / "project", ALONE)

    def shorten(self, line: str) -> str:
        """Returns a line without paths of this machine and without colours."""
        line = line.replace(str(self.root), "ROOT").replace(f"{PROGRAMS}/", "")
        # Neither colours nor rulers across the terminal.
        return re.sub(r"\x1b\[[0-9;]*m|─{9,}", "", line).rstrip()

    def _stop_hosts(self) -> None:
        for host in (self.a, self.b, self.alone):
            host.stop()

    def _make_files(self) -> None:
        make_project(self.project, storage=self.storage, remote=REMOTE, databases=self._databases)
        shutil.copytree(self.project, self.root / "alone" / "project")
        (self.root / "ray").mkdir()

    def _make_hosts(self) -> None:
        for host in (self.a, self.b, self.alone):
            (host.folder / "home").mkdir(parents=True, exist_ok=True)
            host.start()
        self.a.connect(self.b)
        for host, other in ((self.a, self.b), (self.b, self.a)):
            host.cover(self.root / "ray", host.folder / "ray")
            host.cover(self.project / "data", host.folder / "data")
            host.cover(self.project / ".dvc", host.folder / "dvc")
            host.cover(other.folder, host.folder / "unseen")
            host.run(["sh", "-c", 'test -z "$(ls -A "$0")"', str(self.project / "data")])
            self.say(f"{host.name}: {host.address}, its data folder is empty")
        self._start_servers()

    def _start_servers(self) -> None:
        mlflow = self.a.folder / "mlflow"
        mlflow.mkdir(exist_ok=True)
        if self._databases:
            shutil.copyfile(self._databases / "mlflow.db", mlflow / "mlflow.db")
        server = ["mlflow", "server", "--host", ADDRESS_A, "--port", "5000", "--workers", "1"]
        server += ["--backend-store-uri", f"sqlite:///{mlflow}/mlflow.db"]
        server += ["--artifacts-destination", str(mlflow / "artifacts")]
        server += ["--allowed-hosts", MLFLOW]
        head = ["ray", "start", "--head", f"--node-ip-address={ADDRESS_A}", "--port=6379"]
        head += ["--num-cpus=1", f"--temp-dir={self.root / 'ray'}", "--include-dashboard=false"]
        node = ["ray", "start", f"--address={RAY}", f"--node-ip-address={ADDRESS_B}"]
        node += ["--num-cpus=1"]
        remote = ["python", "-u", "-m", "http.server", "8000", "--bind", ADDRESS_B]
        remote += ["--directory", str(self.storage)]
        block = ["--block", "--disable-usage-stats"]
        self._start(self.b, remote, "remote.log", "Serving HTTP")
        tracking = self._start(self.a, server, "mlflow.log", "")
        self._start(self.a, [*head, *block], "ray.log", "Ray runtime started")
        self._start(self.b, [*node, *block], "ray.log", "Ray runtime started")
        wait_for_text(tracking, self.a.folder / "mlflow.log", "startup complete", PATIENCE_SECONDS)

    def _start(
        self, host: Host, command: list[str], log: str, text: str
    ) -> "subprocess.Popen[bytes]":
        self.say(f"{host.name}$ {' '.join(command)}")
        path = host.folder / log
        command = [str(PROGRAMS / command[0]), *command[1:]]
        process = host.popen(command, log=path, folder=host.folder)
        wait_for_text(process, path, text, PATIENCE_SECONDS)
        return process

    def _run(
        self, host: Host, folder: Path, values: Mapping[str, str], uncovered: tuple[Path, ...] = ()
    ) -> None:
        command = ["dml", *self._command]
        for key, value in values.items():
            command += ["--set", f"{key}={value}"]
        self.say(f"{host.name}$ {' '.join(command)}")
        started = time.monotonic()
        program = [str(PROGRAMS / "dml"), *command[1:]]
        for left in reversed(range(ATTEMPTS)):
            log = host.folder / "study.log"
            process = host.popen(program, log=log, folder=folder, uncovered=uncovered)
            code = process.wait(timeout=PATIENCE_SECONDS)
            said = log.read_text(errors="replace")
            # The same command goes on where it stopped.
            if not code or not left or SLOW_START not in said:
                break
        for line in said.splitlines():
            self.say(f"    {line}")
        if code:
            raise ProgramEnded(f"the study on {host.name} ended with code {code}")
        self.say(f"    ({time.monotonic() - started:.0f} s)")

    def _make_environment(self) -> dict[str, str]:
        self.shared.mkdir()
        token = self.shared / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32), encoding="ascii")
        (self.root / "t").mkdir()
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(_UNWANTED) and "proxy" not in key.lower()
        }
        return {
            **kept,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
            # A busy machine takes its time.
            "RAY_agent_register_timeout_ms": "180000",
            "RAY_worker_register_timeout_seconds": "180",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(self.root / "t"),
        }


@contextmanager
def _deaf() -> Iterator[None]:
    """Ignores signals that ask to stop within the block."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _STOPS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
