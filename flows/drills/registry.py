"""All faults that drills know, by name."""

from flows.drills.fault import Fault
from flows.drills.faults.clusters import CLUSTER_KILLED
from flows.drills.faults.commands import CLOCK_SET_BACK, TWO_AT_ONCE
from flows.drills.faults.data import DATA_DAMAGED
from flows.drills.faults.disks import DISK_FULL
from flows.drills.faults.files import CHECKPOINT_BIT_FLIPPED, CHECKPOINT_TRUNCATED
from flows.drills.faults.nodes import NODE_KILLED
from flows.drills.faults.servers import MLFLOW_DELETED, MLFLOW_DOWN, PREFECT_DOWN
from flows.drills.faults.signals import CTRL_C, DRIVER_KILLED, SIGTERM
from flows.drills.faults.workers import (
    CODE_EDITED,
    TRIAL_EATS_MEMORY,
    TRIAL_HANGS,
    WORKER_KILLED,
)

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
)


def find_fault(name: str) -> Fault:
    """Returns a fault by its name."""
    return next(fault for fault in FAULTS if fault.name == name)
