"""The third stage: read the test classes, once."""

from pathlib import Path

from prefect import flow

from tasks.context import StudyRequest
from tasks.evaluating import evaluate_study


@flow(name="evaluate")
def evaluate(request: StudyRequest) -> Path:
    """Judges the winners of a study on the test classes."""
    return evaluate_study(request)
