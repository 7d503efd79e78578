"""The second stage: tune every arm with the same budget, repeat the winners over seeds."""

from pathlib import Path

from prefect import flow

from dml_core.config.data import DataBase, DownloadedData
from flows.prepare import prepare_named
from tasks.artifacts import show_sweep
from tasks.study import StudyContext, StudyRequest, is_prepared, load_context, timed_stage
from tasks.sweep.task import sweep_study
from tasks.versioning.activations import track_activations
from tasks.versioning.stages import is_versioned


@flow(name="sweep")
def sweep(request: StudyRequest, show: str = "auto") -> Path:
    """Runs every trial of a study that is not done yet."""
    context = load_context(request)
    for data in context.datasets:
        if not is_prepared(data) or _may_have_changed(context, data):
            prepare_named(request, data)
    with timed_stage(context, "sweep"):
        folder = sweep_study(request, show)
    track_activations(request)
    show_sweep(request, folder)
    return folder


def _may_have_changed(context: StudyContext, data: DataBase) -> bool:
    """Tells whether a dataset has images that no stage before this one has looked at."""
    is_own = data in context.own_datasets and isinstance(data, DownloadedData)
    # Prepared data may have come from a remote, without their images.
    return is_own and is_versioned(context.request) and Path(data.raw).expanduser().exists()
