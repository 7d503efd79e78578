"""Statistics over seeds: estimates, verdicts, claims and the history of results."""

from typing import TYPE_CHECKING

from dml_core.lazy_names import import_when_used

if TYPE_CHECKING:
    from dml_core.analysis.frames import read_results, read_trial_results
    from dml_core.analysis.observations import Observations, load_observations
    from dml_core.analysis.summary import StudySummary, summarize

__all__ = [
    "Observations",
    "StudySummary",
    "load_observations",
    "read_results",
    "read_trial_results",
    "summarize",
]
__getattr__ = import_when_used(
    __name__,
    {
        "frames": ["read_results", "read_trial_results"],
        "observations": ["Observations", "load_observations"],
        "summary": ["StudySummary", "summarize"],
    },
)
