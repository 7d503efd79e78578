"""A cluster that is gone as a whole, while the command that leads the sweep lives on."""

import contextlib
import time

import psutil

from flows.drills.fault import DrillFailed, Fault
from flows.drills.processes import is_alive, name_of
from flows.drills.scene import Scene

NOTICED_SECONDS = 60.0
NOTICED = "the local Ray cluster was killed. The command restarts with a new one (1 of 3)"
SERVERS = ("gcs_server", "raylet")


def _kill_all(scene: Scene) -> str:
    """Kills the servers, agents and workers of the command's own cluster at once."""
    scene.sweep.start()
    scene.reach_moment()
    members = [process for process in scene.sweep.look() if _is_of_ray(process)]
    if not {name_of(process) for process in members}.issuperset(SERVERS):
        raise DrillFailed(f"no cluster was found: {[name_of(process) for process in members]}")
    for process in members:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    killed = time.monotonic()
    scene.sweep.wait_for(lambda: NOTICED in scene.sweep.printed, "word of the lost cluster")
    if (seconds := time.monotonic() - killed) > NOTICED_SECONDS:
        raise DrillFailed(f"the lost cluster was noticed after {seconds:.0f} s")
    return scene.finish()


def _is_of_ray(process: psutil.Process) -> bool:
    try:
        name, command = process.name(), " ".join(process.cmdline())
    except psutil.Error:
        return False
    is_member = name in SERVERS or name.startswith("ray::") or "/site-packages/ray/" in command
    return is_member and is_alive(process)


CLUSTER_KILLED = Fault(
    "cluster-killed",
    "kill -9 of all processes of the command's own Ray cluster",
    _kill_all,
    stands_alone=True,
)
