"""Exact retrieval, clustering and continuous-label metrics."""

from typing import TYPE_CHECKING

from dml_core.lazy_names import import_when_used

if TYPE_CHECKING:
    from dml_core.evaluation.evaluate import embed, evaluate_embeddings, measure_spread

__all__ = ["embed", "evaluate_embeddings", "measure_spread"]
__getattr__ = import_when_used(
    __name__, {"evaluate": ["embed", "evaluate_embeddings", "measure_spread"]}
)
