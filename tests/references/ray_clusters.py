"""Ray clusters of two nodes on this machine."""

import contextlib
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil


def free_port() -> int:
    """Returns a port of the loopback address that nobody listens at."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Cluster:
    """Two nodes on this machine; the second one has a logical GPU."""

    def __init__(self, folder: Path, *, worker_environment: Mapping[str, str] | None = None):
        """Prepares a cluster.

        Args:
            folder: gets the token, the nodes' logs, and is where the nodes are started.
            worker_environment: variables of the second node alone.
        """
        token = folder / "token"
        token.write_text(secrets.token_hex(32))
        token.chmod(0o600)
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("RAY_")},
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
            # A busy machine takes its time.
            "RAY_raylet_start_wait_time_s": "180",
            "RAY_agent_register_timeout_ms": "180000",
            "RAY_worker_register_timeout_seconds": "180",
            "OMP_NUM_THREADS": "1",
        }
        self.folder = folder
        self.worker_environment = dict(worker_environment or {})
        self.processes: list[subprocess.Popen[bytes]] = []
        # Sockets lie below it, and their paths have to be short.
        self.temporary = tempfile.mkdtemp(prefix="ray-")
        self.port = free_port()
        self.address = ""

    def start(self) -> "Cluster":
        """Starts both nodes and waits until they are up."""
        head = ["--head", f"--port={self.port}", "--num-cpus=1", "--num-gpus=0"]
        head += ["--include-dashboard=false", f"--temp-dir={self.temporary}"]
        found = re.search(r"--address='([\d.]+:\d+)'", self._start_node(head, {}))
        assert found is not None
        self.address = found.group(1)
        worker = [f"--address={self.address}", "--num-cpus=1", "--num-gpus=1"]
        self._start_node(worker, self.worker_environment)
        return self

    def run_driver(
        self,
        script: str,
        *arguments: object,
        folder: Path,
        environment: Mapping[str, str] | None = None,
    ) -> str:
        """Runs a Python script in a folder as a program that joins the cluster.

        Returns:
            The last line that it printed.
        """
        run = subprocess.run(
            [sys.executable, "-c", script, *map(str, arguments)],
            cwd=folder,
            env={**self.environment, **(environment or {})},
            capture_output=True,
            text=True,
            # For a machine that is busy with other work; alone it takes some seconds.
            timeout=600,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        return run.stdout.splitlines()[-1]

    def stop(self) -> None:
        """Ends the nodes with all their processes."""
        family = []
        for process in self.processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                node = psutil.Process(process.pid)
                family += [node, *node.children(recursive=True)]
        for member in reversed(family):
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        psutil.wait_procs(family, timeout=10)
        shutil.rmtree(self.temporary, ignore_errors=True)

    def _start_node(self, arguments: list[str], environment: Mapping[str, str]) -> str:
        ray = Path(sys.executable).with_name("ray")
        log = self.folder / f"node-{len(self.processes)}.log"
        with open(log, "w") as file:
            # Blocking, so that the node's processes are children of one that we hold.
            process = subprocess.Popen(
                [str(ray), "start", "--block", "--disable-usage-stats", *arguments],
                cwd=self.folder,
                env={**self.environment, **environment},
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self.processes.append(process)
        deadline = time.monotonic() + 240
        while "Ray runtime started" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        return log.read_text()


@contextmanager
def two_nodes(folder: Path, **options: Mapping[str, str]) -> Iterator[Cluster]:
    """Yields a running cluster and ends it; options are those of `Cluster`."""
    cluster = Cluster(folder, **options)
    try:
        yield cluster.start()
    finally:
        cluster.stop()
