"""Measurements on trained models: test scores, embeddings, gradients and cost of a step."""

from typing import TYPE_CHECKING

from dml_core.lazy_names import import_when_used

if TYPE_CHECKING:
    from dml_core.measures.model_scores import evaluate_checkpoint, load_trained_model
    from dml_core.measures.results import StudyScores, list_winners, read_scores

__all__ = [
    "StudyScores",
    "evaluate_checkpoint",
    "list_winners",
    "load_trained_model",
    "read_scores",
]
__getattr__ = import_when_used(
    __name__,
    {
        "model_scores": ["evaluate_checkpoint", "load_trained_model"],
        "results": ["StudyScores", "list_winners", "read_scores"],
    },
)
