import json
import os
import subprocess
import sys

import mlflow
import numpy as np
import pytest

from dml_core.data.prepared import open_development
from dml_core.evaluation.of_checkpoint import embed_with_checkpoint
from dml_core.training.checkpoint import load_checkpoint
from tasks.adapters.mlflow_embedding_loader import EmbeddingModel
from tasks.adapters.mlflow_model import pack_model, register_winner

# Runs without the project: isolated, elsewhere, and its packages refused by name.
LOAD = """
import json, sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("dml_core", "tasks", "flows"):
            raise ImportError("blocked: " + name)
sys.meta_path.insert(0, Blocker())
import mlflow, numpy
uri, model_uri, images, output = sys.argv[1:]
mlflow.set_tracking_uri(uri)
model = mlflow.pyfunc.load_model(model_uri)
numpy.save(output, model.predict(numpy.load(images)))
print(json.dumps([str(model.metadata.signature.inputs), sorted(model.metadata.flavors)]))
"""


@pytest.fixture
def checkpoint_file(trained_winners):
    return trained_winners[1] / "dim_8-seed0" / "checkpoint.pt"


@pytest.fixture
def run_id(tracking):
    client = tracking.client()
    run = client.create_run(client.create_experiment("dimension", tracking.artifact_root))
    client.set_terminated(run.info.run_id)
    return run.info.run_id


@pytest.fixture
def images_and_embeddings(checkpoint_file):
    checkpoint = load_checkpoint(checkpoint_file)
    images = open_development(checkpoint.config.data).validation
    return images.gather(np.arange(len(images))), embed_with_checkpoint(checkpoint, images)


@pytest.mark.integration
def test_the_registered_winner_needs_nothing_of_this_project(
    tmp_path, tracking, mlflow_config, run_id, checkpoint_file, images_and_embeddings
):
    images, wanted = images_and_embeddings
    registered = register_winner(
        tracking, mlflow_config, study="dimension", run_id=run_id, checkpoint=checkpoint_file
    )
    assert registered.uri == "models:/dml-dimension@champion"
    np.save(tmp_path / "images.npy", images)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    arguments = [tracking.uri, registered.uri, tmp_path / "images.npy", tmp_path / "found.npy"]
    finished = subprocess.run(
        [sys.executable, "-I", "-c", LOAD, *map(str, arguments)],
        cwd=elsewhere,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    inputs, flavors = json.loads(finished.stdout.splitlines()[-1])
    assert "uint8" in inputs
    assert flavors == ["python_function"]
    np.testing.assert_allclose(np.load(tmp_path / "found.npy"), wanted, atol=1e-6)


def test_the_same_winner_is_registered_once_and_another_moves_the_alias(
    tracking, mlflow_config, run_id, checkpoint_file
):
    before = dict(os.environ)

    def register(path):
        return register_winner(
            tracking, mlflow_config, study="dimension", run_id=run_id, checkpoint=path
        )

    assert [register(checkpoint_file).version for _ in range(2)] == ["1", "1"]
    other = checkpoint_file.parents[1] / "dim_8-seed1" / "checkpoint.pt"
    assert register(other).version == "2"
    client = tracking.client()
    version = client.get_model_version_by_alias("dml-dimension", "champion")
    assert str(version.version) == "2"
    assert client.get_run(run_id).info.status == "FINISHED"
    assert mlflow.active_run() is None
    assert dict(os.environ) == before


def test_both_orders_of_axes_and_other_sizes_give_the_models_own_embeddings(
    tmp_path, checkpoint_file, images_and_embeddings
):
    images, wanted = images_and_embeddings
    pack_model(load_checkpoint(checkpoint_file), tmp_path)
    model = EmbeddingModel(tmp_path)
    np.testing.assert_array_equal(model.predict(images.transpose(0, 3, 1, 2)), wanted)
    np.testing.assert_allclose(model.predict(images[:1]), wanted[:1], atol=1e-6)
    # A border is cut off by the central box of the evaluation.
    wide = np.pad(images, ((0, 0), (3, 3), (5, 5), (0, 0)))
    np.testing.assert_allclose(model.predict(wide), wanted, atol=1e-6)


def test_what_is_no_image_is_refused(tmp_path, checkpoint_file):
    pack_model(load_checkpoint(checkpoint_file), tmp_path)
    model = EmbeddingModel(tmp_path)
    with pytest.raises(ValueError, match=r"Got float64 with the shape \(1, 28, 28, 1\)"):
        model.predict(np.zeros((1, 28, 28, 1)))
    with pytest.raises(ValueError, match=r"1 channel\(s\).*Got the shape \(1, 28, 28, 3\)"):
        model.predict(np.zeros((1, 28, 28, 3), dtype=np.uint8))
