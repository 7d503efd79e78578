"""A Ray cluster of one or two nodes on this machine."""

import contextlib
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from flows.drills.processes import is_alive, kill_tree, name_of
from flows.servers.network import find_free_port

START_SECONDS = 240.0
STARTED = r"Ray runtime started"
JOINED_BY = r"--address='([\d.]+:\d+)'"
"""What a head prints later than that it has started."""
START_TRIES = 4
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Ray then takes 127.0.0.1 for this machine's address, and its servers listen there alone."""
_START = """
import types
import ray.scripts.scripts as scripts

# Ray refuses a second node where it stays on loopback, though two nodes of one machine work there.
known = {**vars(scripts.ray_constants), "ENABLE_RAY_CLUSTER": True}
scripts.ray_constants = types.SimpleNamespace(**known)
scripts.main()
"""


class Cluster:
    """Nodes that this machine alone can reach, two by default; the second has a logical GPU."""

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
            folder: gets the token, the nodes' logs, and is where the nodes are started.
            environment: more variables of all nodes.
            worker_environment: variables of the second node alone.
            cpus: of each node.
        """
        token = folder / "token"
        token.write_text(secrets.token_hex(32))
        token.chmod(0o600)
        self.variables = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
            # A busy machine takes its time.
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
        # Sockets lie below it, and their paths have to be short.
        self.temporary = tempfile.mkdtemp(prefix="ray-")
        self.port = find_free_port("127.0.0.1")
        self.address = ""

    def start(self) -> "Cluster":
        """Starts both nodes and waits until they are up."""
        self.start_head()
        worker = [f"--address={self.address}", f"--num-cpus={self.cpus}", "--num-gpus=1"]
        self._start_node(worker, self.worker_environment, printed=STARTED)
        return self

    def start_head(self) -> None:
        """Starts the first node and waits until it is up."""
        head = ["--head", f"--port={self.port}", f"--num-cpus={self.cpus}", "--num-gpus=0"]
        head += ["--include-dashboard=false", f"--temp-dir={self.temporary}"]
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
        """Ends the nodes with all their processes."""
        for node in reversed(range(len(self.processes))):
            self.kill_node(node)
        shutil.rmtree(self.temporary, ignore_errors=True)

    def _start_node(
        self, arguments: list[str], environment: Mapping[str, str], *, printed: str
    ) -> re.Match[str]:
        # Ray gives its own processes some seconds here and there, too few on a busy machine.
        for _ in range(START_TRIES - 1):
            with contextlib.suppress(RuntimeError):
                return self._try_node(arguments, environment, printed)
            kill_tree(self.processes[-1].pid)
            self.processes.pop().wait()
        return self._try_node(arguments, environment, printed)

    def _try_node(
        self, arguments: list[str], environment: Mapping[str, str], printed: str
    ) -> re.Match[str]:
        """Starts a node and returns what it printed, once it has."""
        log = self.folder / f"node-{len(self.processes)}.log"
        with open(log, "w", encoding="utf-8") as file:
            # Blocking, so that the node's processes are children of one that we hold.
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
                raise RuntimeError(f"a node of Ray does not start: {text}")
            time.sleep(0.2)
        return found
