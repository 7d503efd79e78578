"""Faults of the processes that train: workers, a node, the whole cluster."""

import contextlib
import json
import shutil
import time
from pathlib import Path

import psutil

from dml_core.trials.journal import read_epochs
from dml_core.trials.key import hash_training_code
from dml_core.trials.store import LOCKS_FOLDER
from tasks.sources import PACKAGES, imported_tree
from tests.drills.faults.commands import add_hook
from tests.drills.messages import CLUSTER_LOST, WORKER_DIED
from tests.drills.plan import DrillFailed, Fault
from tests.drills.project import NUM_EPOCHS, change_params
from tests.drills.scene import Scene
from tests.drills.sweep import BRISK, suspended
from tests.references.processes import is_alive, name_of
from tests.references.ray_clusters import Cluster

HANG_SECONDS = 20.0
"""sweep.trial_timeout_seconds of the drill; an epoch of a tiny trial takes a fraction of 1 s."""
EDITED_FILE = Path("dml_core") / "losses" / "proxy_anchor.py"
"""The loss of the drill's project."""
EDIT = """

_reduce = ProxyAnchorLoss.reduce_logits
ProxyAnchorLoss.reduce_logits = lambda self, *args, **named: 2 * _reduce(self, *args, **named) ** 2
"""
"""Changes every number of a trial that imports it."""
SPARE_BYTES = 256 * 2**20
"""Memory that a trial may still allocate before its limit."""
# A dead node is detected within seconds instead of Ray's default of twenty.
HEALTH_CHECKS = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "3",
}
CLUSTER_LOST_SECONDS = 60.0
RAY_SERVERS = ("gcs_server", "raylet")


def _suspend_worker(scene: Scene) -> psutil.Process:
    """Suspends a process in the middle of a trial and returns it.

    A process that has ended its trial is no target: a blow to it would hit nothing.
    """
    caught: list[psutil.Process] = []

    def catch() -> bool:
        workers = sorted(scene.sweep.trial_workers(), key=lambda worker: worker.pid)
        for worker in scene.choices.sample(workers, len(workers)):
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
    """Returns whether a process holds a trial with at least one epoch left."""
    files = [Path(file.path) for file in worker.open_files()]
    folders = [path.parents[1] / path.name for path in files if path.parent.name == LOCKS_FOLDER]
    return any(
        not (folder / "result.json").exists() and len(read_epochs(folder)) < NUM_EPOCHS - 1
        for folder in folders
    )


def _finish(scene: Scene) -> str:
    """Waits for the end of the sweep; fails if no trial lost its worker."""
    recovery = scene.finish()
    was_restarted = any(attempts > 1 for attempts, _ in scene.sweep.ended().values())
    if not was_restarted and WORKER_DIED not in scene.sweep.printed:
        raise DrillFailed("no trial was hit")
    return recovery


def _kill_worker(scene: Scene) -> str:
    scene.sweep.start()
    scene.reach_moment()
    _suspend_worker(scene).kill()
    return _finish(scene)


def _hang(scene: Scene) -> str:
    scene.sweep.start()
    scene.reach_moment()
    _suspend_worker(scene)
    return _finish(scene)


def _eat_memory(scene: Scene) -> str:
    add_hook(scene.sweep, DML_DRILL_HOOK=str(scene.folder))
    scene.sweep.start()
    scene.reach_moment()
    worker = _suspend_worker(scene)
    limit = worker.memory_info().vms + SPARE_BYTES
    # The process reaches its own limit before the machine runs out of memory.
    worker.rlimit(psutil.RLIMIT_AS, (limit, limit))
    (scene.folder / f"drill-eat-{worker.pid}").touch()
    worker.resume()
    return _finish(scene)


def _edit_code(scene: Scene) -> str:
    """Edits a loss in the folder's sources and kills all workers, as if an edit met a crash.

    The sources are copied into the folder first, so that it is a clone and the command uses them.
    """
    for name in PACKAGES:
        shutil.copytree(
            imported_tree() / name,
            scene.folder / name,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    scene.sweep.start()
    scene.reach_moment()
    caught = _suspend_worker(scene)
    loss = scene.folder / EDITED_FILE
    loss.write_text(loss.read_text(encoding="utf-8") + EDIT, encoding="utf-8")
    for worker in [caught, *scene.sweep.trial_workers()]:
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.kill()
    recovery = _finish(scene)
    _check_code(scene)
    for name in PACKAGES:
        shutil.rmtree(scene.folder / name)
    return recovery


def _check_code(scene: Scene) -> None:
    """Fails if a journal has another code hash than the one of the sweep's start."""
    paths = scene.sweep.trials_folder.glob("*/spec.json")
    codes = {json.loads(path.read_text(encoding="utf-8"))["code"] for path in paths}
    if codes != {hash_training_code()}:
        raise DrillFailed(f"the journals have the code {codes}, not {hash_training_code()}")


def _kill_node(scene: Scene) -> str:
    """Kills all processes of the second of two nodes."""
    home = scene.folder / "drill-cluster"
    home.mkdir()
    cluster = Cluster(home, environment={**HEALTH_CHECKS, **BRISK})
    try:
        cluster.start()
        change_params(scene.folder, {"ray.address": cluster.address})
        scene.sweep.environment.update(cluster.variables)
        scene.sweep.start()
        _wait_for_both_nodes(scene, cluster)
        scene.reach_moment(is_training=lambda: len(cluster.trial_workers(1)) > 0)
        cluster.kill_node(1)
        recovery = scene.finish()
        was_restarted = any(attempts > 1 for attempts, _ in scene.sweep.ended().values())
        if not was_restarted and WORKER_DIED not in scene.sweep.printed:
            raise DrillFailed("no trial was hit")
        return recovery
    finally:
        cluster.stop()


def _wait_for_both_nodes(scene: Scene, cluster: Cluster) -> None:
    """Suspends the first node's workers until the second node trains too.

    On a busy machine the first node could otherwise run all trials before.
    """
    sweep = scene.sweep
    sweep.wait_for(lambda: cluster.trial_workers(0) or cluster.trial_workers(1), "a trial")
    with suspended(cluster.trial_workers(0)):
        before = sweep.running()
        sweep.wait_for(
            lambda: (
                cluster.trial_workers(1)
                and any(epochs > before.get(name, 0) for name, epochs in sweep.running().items())
            ),
            "an epoch on the second node",
        )


def _kill_cluster(scene: Scene) -> str:
    """Kills the servers, agents and workers of the command's own cluster at once."""
    scene.sweep.start()
    scene.reach_moment()
    members = [process for process in scene.sweep.poll_family() if _belongs_to_ray(process)]
    if not {name_of(process) for process in members}.issuperset(RAY_SERVERS):
        raise DrillFailed(f"no cluster was found: {[name_of(process) for process in members]}")
    for process in members:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    killed = time.monotonic()
    scene.sweep.wait_for(lambda: CLUSTER_LOST in scene.sweep.printed, "word of the lost cluster")
    if (seconds := time.monotonic() - killed) > CLUSTER_LOST_SECONDS:
        raise DrillFailed(f"the lost cluster was detected after {seconds:.0f} s")
    return scene.finish()


def _belongs_to_ray(process: psutil.Process) -> bool:
    try:
        name, command = process.name(), " ".join(process.cmdline())
    except psutil.Error:
        return False
    is_member = name in RAY_SERVERS or name.startswith("ray::") or "/site-packages/ray/" in command
    return is_member and is_alive(process)


WORKER_KILLED = Fault("worker-killed", "kill -9 of a process that trains", _kill_worker)
NODE_KILLED = Fault("node-killed", "kill -9 of all processes of one of two nodes", _kill_node)
TRIAL_HANGS = Fault(
    "trial-hangs",
    "a process that trains stops making progress",
    _hang,
    params={"sweep.trial_timeout_seconds": HANG_SECONDS},
)
TRIAL_EATS_MEMORY = Fault(
    "trial-eats-memory",
    "a process that trains allocates all memory that it may have",
    _eat_memory,
    # Only the command's own cluster loads the hook into its workers.
    starts_servers=True,
)
CODE_EDITED = Fault(
    "code-edited",
    "a loss is edited, and all processes that train are killed with -9",
    _edit_code,
)
CLUSTER_KILLED = Fault(
    "cluster-killed",
    "kill -9 of all processes of the command's own Ray cluster",
    _kill_cluster,
    starts_servers=True,
)
