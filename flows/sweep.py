"""The second stage: tune every arm with the same budget, repeat the winners over seeds."""

from pathlib import Path

from prefect import flow

from tasks.activation_tracking import track_activations
from tasks.artifacts import show_sweep
from tasks.context import StudyRequest, is_prepared, load_context
from tasks.datasets import prepare_data
from tasks.stage_seconds import timed_stage
from tasks.sweeps import sweep_study


@flow(name="sweep")
def sweep(request: StudyRequest, show: str = "auto") -> Path:
    """Runs every trial of a study that is not done yet."""
    context = load_context(request)
    for data in context.datasets:
        if not is_prepared(data):
            prepare_data(data)
    with timed_stage(context, "sweep"):
        folder = sweep_study(request, show)
    track_activations(request)
    show_sweep(request, folder)
    return folder
