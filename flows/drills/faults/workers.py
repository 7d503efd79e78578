"""What happens to the processes that train."""

import psutil

from flows.drills.fault import DrillFailed, Fault
from flows.drills.hooks import use_memory_hook
from flows.drills.scene import Scene

HANG_SECONDS = 20.0
"""Of sweep.trial_timeout_seconds in the drill; a tiny trial's epoch takes a fraction of one."""
SPARE_BYTES = 256 * 2**20
"""What a trial that eats memory may still get."""


def _choose_worker(scene: Scene) -> psutil.Process:
    workers = sorted(scene.sweep.trial_workers(), key=lambda worker: worker.pid)
    if not workers:
        raise DrillFailed("no process trains at this moment")
    return scene.chance.choice(workers)


def _check_restarted(scene: Scene) -> None:
    """Fails where no trial was started twice: the fault has hit nothing."""
    if not any(len(starts) > 1 for starts, _ in scene.sweep.ended().values()):
        raise DrillFailed("no trial was hit")


def _kill(scene: Scene) -> str:
    scene.sweep.start()
    scene.reach_moment()
    _choose_worker(scene).kill()
    return _finish(scene)


def _hang(scene: Scene) -> str:
    scene.sweep.start()
    scene.reach_moment()
    _choose_worker(scene).suspend()
    return _finish(scene)


def _eat(scene: Scene) -> str:
    use_memory_hook(scene.sweep)
    scene.sweep.start()
    scene.reach_moment()
    worker = _choose_worker(scene)
    limit = worker.memory_info().vms + SPARE_BYTES
    # Its own limit comes before the machine's memory is in danger.
    worker.rlimit(psutil.RLIMIT_AS, (limit, limit))
    (scene.folder / f"drill-eat-{worker.pid}").touch()
    return _finish(scene)


def _finish(scene: Scene) -> str:
    went_on = scene.finish()
    _check_restarted(scene)
    return went_on


WORKER_KILLED = Fault("worker-killed", "kill -9 of a process that trains", _kill)
TRIAL_HANGS = Fault(
    "trial-hangs",
    "a process that trains stands still",
    _hang,
    params={"sweep.trial_timeout_seconds": HANG_SECONDS},
)
TRIAL_EATS_MEMORY = Fault(
    "trial-eats-memory",
    "a process that trains takes all memory that it may have",
    _eat,
    # Only a cluster of its own brings the drill's code into the process.
    stands_alone=True,
)
