"""Ray clusters of two nodes on this machine, for programs that join them."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from flows.drills.ray_nodes import Cluster as TwoNodes
from flows.servers.network import find_free_port


def free_port() -> int:
    """Returns a port of the loopback address that nobody listens at."""
    return find_free_port("127.0.0.1")


class Cluster(TwoNodes):
    """Two nodes on this machine; the second one has a logical GPU."""

    def start(self) -> "Cluster":
        """Starts both nodes and waits until they are up."""
        super().start()
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


@contextmanager
def two_nodes(folder: Path, **options: Mapping[str, str]) -> Iterator[Cluster]:
    """Yields a running cluster and ends it; options are those of `Cluster`."""
    cluster = Cluster(folder, **options)
    try:
        yield cluster.start()
    finally:
        cluster.stop()
