"""Faults of the servers of MLflow and Prefect."""

import sqlite3
from contextlib import closing

from tests.drills.messages import MLFLOW_LATE
from tests.drills.plan import DrillFailed, Fault
from tests.drills.scene import Scene
from tests.drills.servers import SIGN_IN, DrillServer, mlflow_server, prefect_server
from tests.references.empty_databases import MLFLOW_DATABASE, PREFECT_DATABASE


def _restart_late(scene: Scene, server: DrillServer) -> str:
    """Kills a server at the moment, and restarts it once a trial has ended without it."""
    scene.sweep.start()
    scene.reach_moment()
    server.stop()
    before = len(scene.sweep.ended())
    scene.sweep.wait_for(
        lambda: len(scene.sweep.ended()) > before, "the end of a trial without the server"
    )
    server.start()
    return scene.finish()


def _lose_mlflow(scene: Scene) -> str:
    with mlflow_server(scene.folder).running() as server:
        scene.sweep.environment["MLFLOW_TRACKING_URI"] = server.address
        recovery = _restart_late(scene, server)
        if MLFLOW_LATE not in scene.sweep.printed:
            return recovery
        # The server was back too late: the end of a sweep waits only briefly.
        scene.resume()
        return f"{recovery}; the same command sent the rest to MLflow"


def _delete_database(scene: Scene) -> str:
    """Deletes MLflow's database at the moment; the end of the sweep must log everything again."""
    scene.sweep.start()
    scene.reach_moment()
    for path in scene.folder.glob(f"{MLFLOW_DATABASE}*"):
        path.unlink()
    return scene.finish()


def _lose_prefect(scene: Scene) -> str:
    with prefect_server(scene.folder).running() as server:
        scene.sweep.environment |= {"PREFECT_API_URL": f"{server.address}/api", **SIGN_IN}
        recovery = _restart_late(scene, server)
    with closing(sqlite3.connect(scene.folder / PREFECT_DATABASE)) as database:
        states = database.execute("select name, state_type from flow_run").fetchall()
    if {state for _, state in states} != {"COMPLETED"}:
        raise DrillFailed(f"Prefect has flow runs that are not COMPLETED: {states}")
    return recovery


MLFLOW_DOWN = Fault(
    "mlflow-down",
    "the MLflow server is killed, and comes back after a while",
    _lose_mlflow,
    latest=4,
    trials_at_once=1,
)
MLFLOW_DELETED = Fault(
    "mlflow-deleted",
    "MLflow's database is deleted while the sweep runs",
    _delete_database,
)
PREFECT_DOWN = Fault(
    "prefect-down",
    "the Prefect server is killed, and comes back after a while",
    _lose_prefect,
    latest=4,
    trials_at_once=1,
)
