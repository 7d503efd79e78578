"""Ray clusters of one or two nodes on this machine, and programs that join them."""

import contextlib
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from flows.servers.network import find_free_port
from tests.references.processes import is_alive, kill_tree, name_of

START_SECONDS = 240.0
STARTED = r"Ray runtime started"
JOINED_BY = r"--address='([\d.]+:\d+)'"
"""A head node prints this after it has started."""
START_TRIES = 4
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Makes Ray use 127.0.0.1 as the address of this machine; its servers listen on it only."""
_START = """
import types
import ray.scripts.scripts as scripts

# Ray refuses a second node on loopback, though two nodes of one machine work there.
known = {**vars(scripts.ray_constants), "ENABLE_RAY_CLUSTER": True}
scripts.ray_constants = types.SimpleNamespace(**known)
scripts.main()
"""


class Cluster:
    """One or two nodes that only this machine can reach; the second has a logical GPU."""

    def __init__(
        self,
        folder: Path,
        *,
        environment: Mapping[str, str] | None = None,
        worker_environment: Mapping[str, str] | None = None,
        cpus: int = 1,
    ) -> None:
        """Prepares a cluster.

        Args:
            folder: working folder of the nodes, with their token and logs.
            environment: further environment variables of all nodes.
            worker_environment: environment variables of the second node only.
            cpus: CPUs of each node.
        """
        token = folder / "token"
        token.write_text(secrets.token_hex(32))
        token.chmod(0o600)
        self.variables = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
            # Generous limits, for a busy machine.
            "RAY_raylet_start_wait_time_s": "60",
            "RAY_agent_register_timeout_ms": "180000",
            "RAY_worker_register_timeout_seconds": "180",
            "OMP_NUM_THREADS": "1",
            **LOOPBACK,
            **(environment or {}),
        }
        kept = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
        self.environment = {**kept, **self.variables}
        self.folder = folder
        self.cpus = cpus
        self.worker_environment = dict(worker_environment or {})
        self.processes: list[subprocess.Popen[bytes]] = []
        # A short path: Ray's sockets lie below it.
        self.temporary = tempfile.mkdtemp(prefix="ray-")
        self.port = find_free_port("127.0.0.1")
        self.address = ""
        self.dashboard = ""
        """Address that accepts jobs, if it was started."""

    def start(self) -> "Cluster":
        """Starts both nodes and waits until they are up."""
        self.start_head()
        worker = [f"--address={self.address}", f"--num-cpus={self.cpus}", "--num-gpus=1"]
        self._start_node(worker, self.worker_environment, printed=STARTED)
        return self

    def start_head(self, *, dashboard: bool = False, options: Sequence[str] = ()) -> None:
        """Starts the first node and waits until it is up.

        Args:
            dashboard: also starts the dashboard, which accepts jobs.
            options: further ones of `ray start`.
        """
        head = ["--head", f"--port={self.port}", f"--num-cpus={self.cpus}", "--num-gpus=0"]
        head += [f"--include-dashboard={str(dashboard).lower()}", f"--temp-dir={self.temporary}"]
        # By default all clusters of a machine want port 10001, and end if they cannot have it.
        head += [f"--ray-client-server-port={find_free_port('127.0.0.1')}", *options]
        if dashboard:
            port = find_free_port("127.0.0.1")
            head += [f"--dashboard-port={port}", "--dashboard-host=127.0.0.1"]
            # The agent starts jobs. On its usual port it fails as soon as another cluster has one.
            head.append(f"--dashboard-agent-listen-port={find_free_port('127.0.0.1')}")
            self.dashboard = f"http://127.0.0.1:{port}"
        self.address = self._start_node(head, {}, printed=JOINED_BY).group(1)

    def trial_workers(self, node: int) -> list[psutil.Process]:
        """Returns the processes of a node, 0 or 1, that train."""
        family = psutil.Process(self.processes[node].pid).children(recursive=True)
        return [p for p in family if is_alive(p) and name_of(p).startswith("ray::Implicit")]

    def kill_node(self, node: int) -> None:
        """Kills all processes of a node, 0 or 1."""
        kill_tree(self.processes[node].pid)
        self.processes[node].wait()

    def stop(self) -> None:
        """Kills the nodes with all their processes."""
        for node in reversed(range(len(self.processes))):
            self.kill_node(node)
        shutil.rmtree(self.temporary, ignore_errors=True)

    def run_driver(
        self,
        script: str,
        *arguments: object,
        folder: Path,
        environment: Mapping[str, str] | None = None,
    ) -> str:
        """Runs a Python script that joins the cluster.

        Returns:
            The last line that the script printed.
        """
        run = subprocess.run(
            [sys.executable, "-c", script, *map(str, arguments)],
            cwd=folder,
            env={**self.environment, **(environment or {})},
            capture_output=True,
            text=True,
            # Generous, for a busy machine.
            timeout=600,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        return run.stdout.splitlines()[-1]

    def _start_node(
        self, arguments: list[str], environment: Mapping[str, str], *, printed: str
    ) -> re.Match[str]:
        # Ray's own processes time out within seconds, too early on a busy machine.
        for _ in range(START_TRIES - 1):
            with contextlib.suppress(RuntimeError):
                return self._try_node(arguments, environment, printed)
            kill_tree(self.processes[-1].pid)
            self.processes.pop().wait()
        return self._try_node(arguments, environment, printed)

    def _try_node(
        self, arguments: list[str], environment: Mapping[str, str], printed: str
    ) -> re.Match[str]:
        """Starts a node, waits for a line of its output, and returns the match."""
        log = self.folder / f"node-{len(self.processes)}.log"
        with open(log, "w", encoding="utf-8") as file:
            # --block makes the node's processes our descendants.
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    _START,
                    "start",
                    "--block",
                    "--disable-usage-stats",
                    *arguments,
                ],
                cwd=self.folder,
                env={**self.environment, **environment},
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self.processes.append(process)
        deadline = time.monotonic() + START_SECONDS
        while (found := re.search(printed, text := log.read_text(encoding="utf-8"))) is None:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"a Ray node does not start: {text}")
            time.sleep(0.2)
        return found


@contextmanager
def two_nodes(folder: Path, **options: Mapping[str, str]) -> Iterator[Cluster]:
    """Yields a running cluster of two nodes; the options are those of `Cluster`."""
    cluster = Cluster(folder, **options)
    try:
        yield cluster.start()
    finally:
        cluster.stop()


def free_port() -> int:
    """Returns a free port of the loopback address."""
    return find_free_port("127.0.0.1")
