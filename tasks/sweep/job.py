"""What a sweep's driver tells a worker about a trial; light, for it is read before torch is."""

from dataclasses import dataclass, field
from typing import Any

from tasks.sweep.node_data import DataSource

HUNG_FILE = "hung.txt"
"""In a trial's folder: why its last process was killed, where it did nothing for too long."""


@dataclass(frozen=True)
class TrialOrder:
    """Everything that a worker needs to know of a trial, as plain values."""

    spec: dict[str, Any]
    folder: str
    """The trial's folder in the ledger, absolute, seen by every node."""
    working_folder: str
    """What relative paths of the configuration start from, where a node has it."""
    data_version: str
    """What `describe_data` must say of the node's data; empty where nobody knows."""
    data_source: DataSource = field(default_factory=dict)
    """Where a node that lacks the data fetches them."""
    timeout_seconds: float = 0.0
    """Longest time without a finished epoch; 0 for no limit."""
    is_judged: bool = False
    """Whether the trial may be stopped after any epoch for being behind others."""
    code: str = ""
    """Hash of the training code that the worker must have imported; empty for any."""
    libraries: dict[str, str] = field(default_factory=dict)
    """Versions that the worker must have, by library."""
