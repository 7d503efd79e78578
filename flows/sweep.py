"""The second stage: tune every arm with the same budget, repeat the winners over seeds."""

from pathlib import Path

from prefect import flow

from tasks.context import StudyRequest, load_context
from tasks.datasets import is_prepared, prepare_data
from tasks.sweeps import study_datasets, sweep_study


@flow(name="sweep")
def sweep(request: StudyRequest, show: str = "auto") -> Path:
    """Runs every trial of a study that is not done yet."""
    for data in study_datasets(load_context(request)):
        if not is_prepared(data):
            prepare_data(data)
    return sweep_study(request, show)
