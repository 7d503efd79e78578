"""What happens to the processes that train."""

import contextlib
import json
import shutil
from pathlib import Path

import psutil

from dml_core.trials.journal import read_epochs
from dml_core.trials.key import hash_training_code
from flows.drills.fault import DrillFailed, Fault
from flows.drills.hooks import use_memory_hook
from flows.drills.project import NUM_EPOCHS
from flows.drills.scene import Scene
from tasks.sources import PACKAGES, imported_tree

HANG_SECONDS = 20.0
"""Of sweep.trial_timeout_seconds in the drill; a tiny trial's epoch takes a fraction of one."""
EDITED_FILE = Path("dml_core") / "losses" / "proxy_anchor.py"
"""The loss of the drill's project."""
EDIT = """

_reduce = ProxyAnchorLoss.reduce_logits
ProxyAnchorLoss.reduce_logits = lambda self, *args, **named: 2 * _reduce(self, *args, **named) ** 2
"""
"""Changes every number of a training that imports it."""
SPARE_BYTES = 256 * 2**20
"""What a trial that eats memory may still get."""


def _catch_worker(scene: Scene) -> psutil.Process:
    """Holds up a process in the middle of a trial and returns it.

    One that has ended its trial waits for the next or for its end, and a blow to it hits nothing.
    """
    caught: list[psutil.Process] = []

    def catch() -> bool:
        workers = sorted(scene.sweep.trial_workers(), key=lambda worker: worker.pid)
        for worker in scene.chance.sample(workers, len(workers)):
            with contextlib.suppress(psutil.Error):
                worker.suspend()
                if _is_within_trial(worker):
                    caught.append(worker)
                    return True
                worker.resume()
        return False

    scene.sweep.wait_for(catch, "a process within a trial")
    return caught[0]


def _is_within_trial(worker: psutil.Process) -> bool:
    """Tells whether a process holds a trial that has an epoch to go."""
    folders = [Path(file.path).parent for file in worker.open_files() if _is_lock(file.path)]
    return any(
        not (folder / "result.json").exists() and len(read_epochs(folder)) < NUM_EPOCHS - 1
        for folder in folders
    )


def _is_lock(path: str) -> bool:
    return path.endswith("/worker.lock")


def _check_hit(scene: Scene) -> None:
    """Fails where no trial lost its worker: the fault has hit nothing."""
    was_restarted = any(len(starts) > 1 for starts, _ in scene.sweep.ended().values())
    if not was_restarted and "its worker died" not in scene.sweep.printed:
        raise DrillFailed("no trial was hit")


def _kill(scene: Scene) -> str:
    scene.sweep.start()
    scene.reach_moment()
    _catch_worker(scene).kill()
    return _finish(scene)


def _hang(scene: Scene) -> str:
    scene.sweep.start()
    scene.reach_moment()
    _catch_worker(scene)
    return _finish(scene)


def _eat(scene: Scene) -> str:
    use_memory_hook(scene.sweep)
    scene.sweep.start()
    scene.reach_moment()
    worker = _catch_worker(scene)
    limit = worker.memory_info().vms + SPARE_BYTES
    # Its own limit comes before the machine's memory is in danger.
    worker.rlimit(psutil.RLIMIT_AS, (limit, limit))
    (scene.folder / f"drill-eat-{worker.pid}").touch()
    worker.resume()
    return _finish(scene)


def _edit_code(scene: Scene) -> str:
    """Doubles a loss in the folder's sources and kills all that trains, as an edit meets a crash.

    The folder gets the sources first, so that it is a clone, and the command uses those.
    """
    for name in PACKAGES:
        shutil.copytree(
            imported_tree() / name,
            scene.folder / name,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    scene.sweep.start()
    scene.reach_moment()
    caught = _catch_worker(scene)
    loss = scene.folder / EDITED_FILE
    loss.write_text(loss.read_text(encoding="utf-8") + EDIT, encoding="utf-8")
    for worker in [caught, *scene.sweep.trial_workers()]:
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.kill()
    went_on = _finish(scene)
    _check_code(scene)
    for name in PACKAGES:
        shutil.rmtree(scene.folder / name)
    return went_on


def _check_code(scene: Scene) -> None:
    """Fails where a result is not kept under the hash of the code that the sweep began with."""
    paths = scene.sweep.working_folder.glob("trials/*/spec.json")
    codes = {json.loads(path.read_text(encoding="utf-8"))["code"] for path in paths}
    if codes != {hash_training_code()}:
        raise DrillFailed(f"the results are kept under {codes}, not {hash_training_code()}")


def _finish(scene: Scene) -> str:
    went_on = scene.finish()
    _check_hit(scene)
    return went_on


WORKER_KILLED = Fault("worker-killed", "kill -9 of a process that trains", _kill)
CODE_EDITED = Fault(
    "code-edited",
    "a loss is edited, and all processes that train are killed with -9",
    _edit_code,
)
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
