"""A node of the cluster that goes away."""

from flows.drills.fault import DrillFailed, Fault
from flows.drills.project import change_params
from flows.drills.ray_nodes import Cluster
from flows.drills.scene import Scene
from flows.drills.sweep import BRISK, held

# A node that was killed is to be noticed within seconds, not within Ray's usual twenty.
WATCHFUL = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "3",
}


def _lose_node(scene: Scene) -> str:
    """Kills all processes of the second of two nodes."""
    home = scene.folder / "drill-cluster"
    home.mkdir()
    cluster = Cluster(home, environment={**WATCHFUL, **BRISK})
    try:
        cluster.start()
        change_params(scene.folder, {"ray.address": cluster.address})
        scene.sweep.environment.update(cluster.variables)
        scene.sweep.start()
        _wait_for_both(scene, cluster)
        scene.reach_moment(is_training=lambda: len(cluster.trial_workers(1)) > 0)
        cluster.kill_node(1)
        went_on = scene.finish()
        if not any(len(starts) > 1 for starts, _ in scene.sweep.ended().values()):
            raise DrillFailed("no trial was hit")
        return went_on
    finally:
        cluster.stop()


def _wait_for_both(scene: Scene, cluster: Cluster) -> None:
    """Holds up the first node until the second one trains too.

    On a busy machine that may be so late that the first one has done all by then.
    """
    sweep = scene.sweep
    sweep.wait_for(lambda: cluster.trial_workers(0) or cluster.trial_workers(1), "a trial")
    with held(cluster.trial_workers(0)):
        before = sweep.running()
        sweep.wait_for(
            lambda: (
                cluster.trial_workers(1)
                and any(epochs > before.get(name, 0) for name, epochs in sweep.running().items())
            ),
            "an epoch on the second node",
        )


NODE_KILLED = Fault("node-killed", "kill -9 of all processes of one of two nodes", _lose_node)
