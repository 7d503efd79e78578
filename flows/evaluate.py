"""The third stage: read the test classes, once."""

from pathlib import Path

from prefect import flow

from tasks.activation_tracking import track_activations
from tasks.artifacts import show_scores
from tasks.context import StudyRequest, load_context
from tasks.evaluating import evaluate_study
from tasks.stage_seconds import timed_stage


@flow(name="evaluate")
def evaluate(request: StudyRequest) -> Path:
    """Judges the winners of a study on the test classes."""
    with timed_stage(load_context(request), "evaluate"):
        scores = evaluate_study(request)
    track_activations(request)
    show_scores(request, scores)
    return scores
