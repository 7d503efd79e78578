"""The third stage: read the test classes, once."""

from pathlib import Path

from prefect import flow

from tasks.artifacts import show_scores
from tasks.evaluate import evaluate_study
from tasks.study import StudyRequest, load_context, timed_stage
from tasks.versioning.activations import track_activations


@flow(name="evaluate")
def evaluate(request: StudyRequest) -> Path:
    """Judges the winners of a study on the test classes."""
    with timed_stage(load_context(request), "evaluate"):
        scores = evaluate_study(request)
    track_activations(request)
    show_scores(request, scores)
    return scores
