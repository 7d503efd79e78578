"""Studies: a question, its arms, their search spaces, and the trials that follow from these."""

from typing import TYPE_CHECKING

from dml_core.lazy_names import import_when_used

if TYPE_CHECKING:
    from dml_core.studies.definition import Study
    from dml_core.studies.loading import load_study
    from dml_core.studies.resolved import ResolvedStudy

__all__ = ["ResolvedStudy", "Study", "load_study"]
__getattr__ = import_when_used(
    __name__,
    {
        "definition": ["Study"],
        "loading": ["load_study"],
        "resolved": ["ResolvedStudy"],
    },
)
