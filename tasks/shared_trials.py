"""Foresees which trials of a study need no training."""

from dml_core.studies.code_version import hash_training_code
from dml_core.studies.ledger import Ledger
from dml_core.studies.resolved import ResolvedStudy
from dml_core.studies.trial_pool import count_shared
from dml_core.studies.trial_spec import TrialSpec
from tasks.context import StudyContext
from tasks.node_data import remember_versions


def count_shared_trials(context: StudyContext) -> int:
    """Returns how many trials of a study would be taken over from other studies.

    Only those are counted that are known before the study runs: all of a grid or random search
    that does not prune, and the repeats of arms that tune nothing.
    """
    ledger = Ledger(
        context.working_folder, code=hash_training_code(), data_version=remember_versions()
    )
    return count_shared(list_known_trials(context.study), ledger, context.working_folder.parent)


def list_known_trials(study: ResolvedStudy) -> list[TrialSpec]:
    """Returns the trials of a study that depend on no result and may be taken over."""
    is_listed = study.searcher != "tpe" and study.scheduler.name == "none"
    untuned = {arm.name: {} for arm in study.arms if not arm.space}
    return [*(study.search_specs() if is_listed else []), *study.repeat_specs(untuned)]
