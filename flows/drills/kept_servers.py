"""Servers that stay up between drills: starting them takes longer than most faults."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flows.drills.project import change_params
from flows.drills.ray_nodes import Cluster
from flows.drills.servers import SIGN_IN, prefect_server
from flows.drills.sweep import BRISK, DrilledSweep

CPUS = 4
"""Of the cluster: ray.max_concurrent of each project says how many trials it runs at once."""


class KeptServers:
    """A Prefect server and a Ray cluster, as a team has them."""

    def __init__(self, folder: Path, *, project: Path) -> None:
        """Prepares both.

        Args:
            folder: is made, for their files.
            project: has the empty database of Prefect.
        """
        shutil.copytree(project / ".dml", folder / ".dml")
        self._prefect = prefect_server(folder)
        self._cluster = Cluster(folder, environment=BRISK, cpus=CPUS)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Keeps them up for the block."""
        try:
            self._cluster.start_head()
            with self._prefect.running():
                yield
        finally:
            self._cluster.stop()

    def use(self, sweep: DrilledSweep) -> None:
        """Lets a sweep use them."""
        change_params(sweep.folder, {"ray.address": self._cluster.address})
        sweep.environment.update(self._cluster.variables)
        sweep.environment |= {"PREFECT_API_URL": f"{self._prefect.address}/api", **SIGN_IN}
