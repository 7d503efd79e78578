"""Chooses the metric that a study's verdicts go by."""

from dml_core.studies.figure_checks import is_drawn_by_training
from dml_core.studies.resolved import ResolvedStudy


def answer_metric(study: ResolvedStudy) -> str:
    """Returns the metric that a study's verdicts go by, such as `test.recall_at_1`.

    It is the main figure's first. A figure of curves or tables has no single number for each
    training; then it is recall_at_1 (or of the first K), and nDCG at the first K where the
    baseline is chosen by nDCG.
    """
    figure = study.definition.figure
    if not is_drawn_by_training(figure):
        return figure.y[0]
    config = study.arm_config(study.baseline)
    if config.selection_metric.startswith("ndcg"):
        return f"test.{config.selection_metric}"
    ranks = config.evaluation.recall_at
    return f"test.recall_at_{1 if 1 in ranks else ranks[0]}"
