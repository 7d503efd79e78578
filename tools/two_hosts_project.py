"""The project whose study runs over two hosts: tiny, its data in a DVC remote."""

import json
import shutil
from pathlib import Path

from dvc.repo import Repo

from dml_core.config.loading import load_params, load_trial_config, unflatten
from dml_core.data.prepare import prepare_dataset
from dml_core.data.sources.registry import list_images
from tasks.versioning.remote import push_data
from tasks.versioning.session import quiet, track

PARAMS = Path(__file__).parents[1] / "params.yaml"
TINY = {
    "data.max_classes": 16,
    "data.images_per_class": 8,
    "sampler.batch_size": 16,
    "sampler.class_ratio": None,
    "sampler.samples_per_class": 4,
    "model.width": 4,
    "model.embedding_dim": 8,
    # Long enough for a node to take a trial while another works on one.
    "training.epochs": 40,
    "evaluation.clustering": False,
    # A busy machine takes its time.
    "mlflow.timeout_seconds": 300,
    "ray.connect_timeout_seconds": 300,
}
STUDY = """\
question: Does a wider embedding help?
arms:
  small: {model.embedding_dim: 4}
  large: {model.embedding_dim: 8}
nuisance: {optimizer.learning_rate: {log_uniform: [0.001, 0.01]}}
trials_per_arm: 2
seeds: [0, 1]
"""
DATABASES = (Path(".dml") / "prefect" / "prefect.db", Path("mlflow.db"))


def make_project(folder: Path, *, storage: Path, remote: str, databases: Path | None) -> None:
    """Makes a DVC project with prepared data, which are also in a storage.

    Args:
        folder: of the project.
        storage: gets the data as a DVC remote keeps them.
        remote: address at which the storage will be reached.
        databases: holds empty databases of Prefect and MLflow; None lets them be made.
    """
    (folder / "studies").mkdir(parents=True)
    (folder / "studies" / "tiny.yaml").write_text(STUDY, encoding="utf-8")
    params = json.dumps(unflatten({**load_params(PARAMS), **TINY}), indent=1)
    (folder / "params.yaml").write_text(params, encoding="utf-8")
    prepared = _prepare(folder)
    with quiet():
        Repo.init(str(folder), no_scm=True).close()
    (folder / ".dvc" / "config").write_text(
        "[core]\n    no_scm = true\n    remote = storage\n"
        f"['remote \"storage\"']\n    url = {remote}\n"
        f"['remote \"filled\"']\n    url = {storage}\n",
        encoding="utf-8",
    )
    track(folder, prepared)
    push_data(folder, remote="filled")
    if databases is not None:
        for name in DATABASES:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(databases / name, folder / name)


def _prepare(folder: Path) -> Path:
    data = load_trial_config(folder / "params.yaml", []).data
    there = data.model_copy(update={"prepared_root": str(folder / data.prepared_root)})
    prepare_dataset(list_images(there), there, workers=1)
    return there.prepared_path
