"""The faults of the drills, by what they hit."""

from tests.drills.faults.buckets import BUCKET_AWAY_FAULT, CLUSTER_LOST_FAULT
from tests.drills.faults.commands import CLOCK_SET_BACK, CTRL_C, DRIVER_KILLED, SIGTERM, TWO_AT_ONCE
from tests.drills.faults.files import (
    CHECKPOINT_BIT_FLIPPED,
    CHECKPOINT_TRUNCATED,
    DATA_DAMAGED,
    DISK_FULL,
)
from tests.drills.faults.servers import MLFLOW_DELETED, MLFLOW_DOWN, PREFECT_DOWN
from tests.drills.faults.workers import (
    CLUSTER_KILLED,
    CODE_EDITED,
    NODE_KILLED,
    TRIAL_EATS_MEMORY,
    TRIAL_HANGS,
    WORKER_KILLED,
)
from tests.drills.plan import Fault

FAULTS: tuple[Fault, ...] = (
    WORKER_KILLED,
    NODE_KILLED,
    DRIVER_KILLED,
    SIGTERM,
    CTRL_C,
    MLFLOW_DOWN,
    PREFECT_DOWN,
    DISK_FULL,
    CHECKPOINT_TRUNCATED,
    CHECKPOINT_BIT_FLIPPED,
    DATA_DAMAGED,
    TRIAL_HANGS,
    TRIAL_EATS_MEMORY,
    TWO_AT_ONCE,
    CLOCK_SET_BACK,
    CODE_EDITED,
    MLFLOW_DELETED,
    CLUSTER_KILLED,
    CLUSTER_LOST_FAULT,
    BUCKET_AWAY_FAULT,
)


def find_fault(name: str) -> Fault:
    """Returns a fault by its name."""
    return next(fault for fault in FAULTS if fault.name == name)
