"""The second stage: tune every arm with the same budget, repeat the winners over seeds."""

from pathlib import Path

from prefect import flow

from tasks.context import StudyRequest, is_prepared, load_context
from tasks.datasets import prepare_data
from tasks.sweeps import sweep_study


@flow(name="sweep")
def sweep(request: StudyRequest, show: str = "auto") -> Path:
    """Runs every trial of a study that is not done yet."""
    for data in load_context(request).datasets:
        if not is_prepared(data):
            prepare_data(data)
    return sweep_study(request, show)
