"""One trial of a sweep: what decides its numbers."""

from typing import TYPE_CHECKING

from dml_core.lazy_names import import_when_used

if TYPE_CHECKING:
    from dml_core.trials.key import compute_key
    from dml_core.trials.spec import TrialRecord, TrialSpec
    from dml_core.trials.table import read_trials

__all__ = ["TrialRecord", "TrialSpec", "compute_key", "read_trials"]
__getattr__ = import_when_used(
    __name__,
    {
        "key": ["compute_key"],
        "spec": ["TrialRecord", "TrialSpec"],
        "table": ["read_trials"],
    },
)
