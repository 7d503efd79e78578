"""The first stage: from raw images to packed, split and hashed data."""

from typing import Any

from prefect import flow

from dml_core.config.data import DataBase, DownloadedData
from dml_core.data.records import DatasetError
from tasks.artifacts import show_datasets
from tasks.prepare import prepare_data
from tasks.study import STUDIES_FOLDER, StudyRequest, load_context, load_project
from tasks.versioning.stages import is_versioned


@flow(name="prepare")
def prepare(request: StudyRequest) -> list[dict[str, Any]]:
    """Prepares the dataset that the parameters choose, or those that a changed study reads."""
    prepared = [prepare_named(request, data) for data in _choose_datasets(request)]
    show_datasets(request, prepared)
    return prepared


def prepare_named(request: StudyRequest, config: DataBase) -> dict[str, Any]:
    """Packs one dataset; an error names the file and the key that say what it is made of."""
    try:
        return prepare_data(config)
    except DatasetError as error:
        if not isinstance(config, DownloadedData):
            raise
        where = f"data.raw in {request.params}"
        # `dvc repro prepare` works without a study too.
        if request.study_text is not None or (STUDIES_FOLDER / f"{request.study}.yaml").exists():
            where = load_context(request).name_raw(config.raw)
        raise DatasetError(f"{where} is {config.raw!r}: {error}") from error


def _choose_datasets(request: StudyRequest) -> list[Any]:
    if is_versioned(request):
        # The stage of dvc.yaml is the project's dataset; a study's own come with its sweep.
        return [load_project(request).trial.data]
    return list(load_context(request).datasets)
