"""Servers that go away and come back."""

import sqlite3
from contextlib import closing

from flows.drills.databases import MLFLOW_DATABASE, PREFECT_DATABASE
from flows.drills.fault import DrillFailed, Fault
from flows.drills.scene import Scene
from flows.drills.servers import SIGN_IN, DrillServer, mlflow_server, prefect_server


def _take_away(scene: Scene, server: DrillServer) -> str:
    """Kills a server at the moment, and starts it again once a trial has ended without it."""
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
        went_on = _take_away(scene, server)
        if "the same command sends it when MLflow is back." not in scene.sweep.printed:
            return went_on
        # The server was back too late for the end of the sweep, which does not wait for long.
        scene.resume()
        return f"{went_on}; the rest of the record came by the same command"


def _delete_record(scene: Scene) -> str:
    """Deletes MLflow's database at the moment; the sweep's end has to make all of it again."""
    scene.sweep.start()
    scene.reach_moment()
    for path in scene.folder.glob(f"{MLFLOW_DATABASE}*"):
        path.unlink()
    return scene.finish()


def _lose_prefect(scene: Scene) -> str:
    with prefect_server(scene.folder).running() as server:
        scene.sweep.environment |= {"PREFECT_API_URL": f"{server.address}/api", **SIGN_IN}
        went_on = _take_away(scene, server)
    with closing(sqlite3.connect(scene.folder / PREFECT_DATABASE)) as database:
        states = database.execute("select name, state_type from flow_run").fetchall()
    if {state for _, state in states} != {"COMPLETED"}:
        raise DrillFailed(f"Prefect has other flow runs than completed ones: {states}")
    return went_on


MLFLOW_DOWN = Fault(
    "mlflow-down",
    "the MLflow server is killed, and is back after a while",
    _lose_mlflow,
    latest=4,
    trials_at_once=1,
)
MLFLOW_DELETED = Fault(
    "mlflow-deleted",
    "MLflow's database is deleted while the sweep runs",
    _delete_record,
)
PREFECT_DOWN = Fault(
    "prefect-down",
    "the Prefect server is killed, and is back after a while",
    _lose_prefect,
    latest=4,
    trials_at_once=1,
)
