"""The first stage: from raw images to packed, split and hashed data."""

from pathlib import Path
from typing import Any

from prefect import flow

from dml_core.config.loading import load_trial_config
from tasks.artifacts import show_datasets
from tasks.context import StudyRequest, load_context
from tasks.datasets import prepare_data
from tasks.stages import is_versioned


@flow(name="prepare")
def prepare(request: StudyRequest) -> list[dict[str, Any]]:
    """Prepares the dataset that the parameters choose, or those that a changed study reads."""
    prepared = [prepare_data(data) for data in _choose_datasets(request)]
    show_datasets(request, prepared)
    return prepared


def _choose_datasets(request: StudyRequest) -> list[Any]:
    if is_versioned(request):
        # The stage of dvc.yaml is the project's dataset; a study's own come with its sweep.
        return [load_trial_config(Path(request.params), list(request.overrides)).data]
    return list(load_context(request).datasets)
