"""Marks the runs of a study in MLflow as deleted, and removes their artifacts from this disk.

Runs whose model is registered stay, with the run of their sweep: a champion must remain loadable.
"""

import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dml_core.config.pipeline import MlflowConfig
from tasks.tracking.address import Tracking, choose_tracking_uri, open_tracking
from tasks.tracking.runs import PARENT_TAG

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

_PAGE = 1000


@dataclass(frozen=True)
class DoomedRuns:
    """The runs to be deleted."""

    tracking: Tracking | None
    """None where the project has no record in MLflow."""
    run_ids: tuple[str, ...] = ()
    artifacts: tuple[str, ...] = ()
    """Their addresses."""
    num_kept: int = 0
    """Runs that stay because a registered model depends on them."""


def find_runs(
    config: MlflowConfig, *, study: str, digests: Collection[str], project: Path
) -> DoomedRuns:
    """Returns the runs of a study's sweeps; changes nothing.

    Args:
        config: the tracking store.
        study: name of the experiment.
        digests: of the study's versions whose sweeps are meant: a profile has another digest.
        project: the root of the project.
    """
    uri = choose_tracking_uri(config, project=project)
    # Opening would create a missing database.
    if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).is_file():
        return DoomedRuns(None)
    tracking = open_tracking(config, project=project)
    client = tracking.client()
    experiment = client.get_experiment_by_name(study)
    if experiment is None:
        return DoomedRuns(tracking)
    registered = {version.run_id for version in client.search_model_versions()}
    doomed: list[Run] = []
    num_kept = 0
    for digest in sorted(digests):
        where = f"tags.stage = 'sweep' and tags.`dml.digest` = '{digest}'"
        for parent in _search(client, experiment.experiment_id, where):
            nested = f"tags.`{PARENT_TAG}` = '{parent.info.run_id}'"
            runs = [*_search(client, experiment.experiment_id, nested)]
            kept = [run for run in runs if run.info.run_id in registered]
            doomed += [run for run in runs if run.info.run_id not in registered]
            if kept:
                num_kept += len(kept) + 1
            else:
                doomed.append(parent)
    return DoomedRuns(
        tracking,
        tuple(run.info.run_id for run in doomed),
        tuple(run.info.artifact_uri for run in doomed),
        num_kept,
    )


def delete_runs(doomed: DoomedRuns, folders: Collection[Path]) -> None:
    """Marks runs as deleted, then removes the folders of their artifacts.

    MLflow's page can restore the runs with their numbers, without artifacts.
    """
    if doomed.tracking is None:
        return
    client = doomed.tracking.client()
    for run_id in doomed.run_ids:
        client.delete_run(run_id)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _search(client: "MlflowClient", experiment_id: str, where: str) -> "list[Run]":
    found: list[Run] = []
    token = None
    while True:
        page = client.search_runs(
            [experiment_id], filter_string=where, max_results=_PAGE, page_token=token
        )
        found += page
        token = page.token
        if not token:
            return found
