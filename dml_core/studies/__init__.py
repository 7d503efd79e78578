"""Studies: a question, its arms, what is tuned for each, and which trials that makes."""

from dml_core.studies.arms import ResolvedArm
from dml_core.studies.cost import StudyCost, estimate_cost
from dml_core.studies.definition import SchedulerConfig, Study
from dml_core.studies.dimensions import Choice, Dimension, Range
from dml_core.studies.loading import check_batches, list_studies, load_study
from dml_core.studies.resolved import ResolvedStudy
from dml_core.studies.winners import Winner, choose_winners
from dml_core.trials.spec import TrialRecord, TrialSpec

__all__ = [
    "Choice",
    "Dimension",
    "Range",
    "ResolvedArm",
    "ResolvedStudy",
    "SchedulerConfig",
    "Study",
    "StudyCost",
    "TrialRecord",
    "TrialSpec",
    "Winner",
    "check_batches",
    "choose_winners",
    "estimate_cost",
    "list_studies",
    "load_study",
]
