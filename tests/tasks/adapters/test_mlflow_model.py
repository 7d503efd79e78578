import json
import os
import subprocess
import sys
from dataclasses import replace

import mlflow
import numpy as np
import pytest
import torch

from dml_core.config import resolve_trial_config
from dml_core.config.loading import to_flat_dict
from dml_core.data.prepared import open_development
from dml_core.evaluation.embed import measure_spread
from dml_core.evaluation.of_checkpoint import embed_with_checkpoint
from dml_core.models.building import build_model
from dml_core.training.checkpoint import load_checkpoint, save_checkpoint
from dml_core.training.determinism import seeded_torch
from tasks.adapters.mlflow_embedding_loader import EmbeddingModel
from tasks.adapters.mlflow_model import pack_model, promote_winner, register_winner

# Runs without the project: isolated, elsewhere, and its packages refused by name.
LOAD = """
import json, sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("dml_core", "tasks", "flows"):
            raise ImportError("blocked: " + name)
sys.meta_path.insert(0, Blocker())
import mlflow, numpy
uri, images, *outputs = sys.argv[1:]
mlflow.set_tracking_uri(uri)
said = []
for output in outputs:
    model = mlflow.pyfunc.load_model(output.partition("=")[2])
    numpy.save(output.partition("=")[0], model.predict(numpy.load(images)))
    said.append([str(model.metadata.signature.inputs), sorted(model.metadata.flavors)])
print(json.dumps(said))
"""

# Backbones of libraries, whose layers the exported program has to hold itself.
BACKBONES = {
    "resnet": {"model.backbone": "torchvision:resnet18", "model.pooling": "avg+max"},
    "efficientnet": {
        "model.backbone": "timm:tf_efficientnet_lite0",
        "model.weights": "package:efficientnet_lite0",
        "model.layer_norm": True,
        "trunk.train": "from:blocks.5",
    },
}


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


def make_checkpoint(knobs, *, like, path):
    """A checkpoint of another network, whose batch norms have seen the images of a trained one."""
    trained = load_checkpoint(like)
    sizes = {"augmentation.input_size_px": 40, "evaluation.batch_size": 13}
    config = resolve_trial_config(to_flat_dict(trained.config), sizes, knobs)
    images = open_development(config.data).train.gather(np.arange(24))
    with seeded_torch(0, "model"):
        model = build_model(config, in_channels=trained.in_channels)
    with torch.no_grad():
        model(torch.from_numpy(images.transpose(0, 3, 1, 2).copy()))
    state = replace(trained, config=config, model=model.state_dict(), best_model={})
    save_checkpoint(state, path)
    return path


@pytest.mark.integration
def test_registered_winners_need_nothing_of_this_project(
    tmp_path, tracking, mlflow_config, run_id, checkpoint_file, images_and_embeddings
):
    files = {"convnet": checkpoint_file}
    for name, knobs in BACKBONES.items():
        files[name] = make_checkpoint(knobs, like=checkpoint_file, path=tmp_path / f"{name}.pt")
    uris = {
        name: register_winner(
            tracking, mlflow_config, study=name, run_id=run_id, checkpoint=path
        ).uri
        for name, path in files.items()
    }
    assert uris["convnet"] == "models:/dml-convnet@champion"
    np.save(tmp_path / "images.npy", images_and_embeddings[0])
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    arguments = [tracking.uri, str(tmp_path / "images.npy")]
    arguments += [f"{tmp_path / name}.npy={uri}" for name, uri in uris.items()]
    finished = subprocess.run(
        [sys.executable, "-I", "-c", LOAD, *arguments],
        cwd=elsewhere,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    for inputs, flavors in json.loads(finished.stdout.splitlines()[-1]):
        assert "uint8" in inputs
        assert flavors == ["python_function"]
    for name, path in files.items():
        checkpoint = load_checkpoint(path)
        wanted = embed_with_checkpoint(
            checkpoint, open_development(checkpoint.config.data).validation
        )
        assert measure_spread(wanted) > 0.1
        np.testing.assert_allclose(np.load(tmp_path / f"{name}.npy"), wanted, atol=1e-5)


def test_the_alias_stays_at_the_first_winner_until_another_is_promoted(
    tracking, mlflow_config, run_id, checkpoint_file
):
    before = dict(os.environ)

    def register(path):
        return register_winner(
            tracking, mlflow_config, study="dimension", run_id=run_id, checkpoint=path
        )

    def read_champion():
        found = tracking.client().get_model_version_by_alias("dml-dimension", "champion")
        return str(found.version)

    first = register(checkpoint_file)
    assert [first.version, register(checkpoint_file).version] == ["1", "1"]
    assert first.uri == "models:/dml-dimension@champion"
    other = checkpoint_file.parents[1] / "dim_8-seed1" / "checkpoint.pt"
    with pytest.raises(ValueError, match=r"has no version of .*dml run dimension --force"):
        promote_winner(tracking, mlflow_config, study="dimension", checkpoint=other)
    second = register(other)
    assert (second.version, second.uri) == ("2", "models:/dml-dimension/2")
    assert register(other).version == "2"
    assert read_champion() == "1"
    promoted = promote_winner(tracking, mlflow_config, study="dimension", checkpoint=other)
    assert promoted.uri == "models:/dml-dimension@champion"
    assert read_champion() == "2"
    assert register(other).is_champion
    assert not register(checkpoint_file).is_champion
    assert tracking.client().get_run(run_id).info.status == "FINISHED"
    assert mlflow.active_run() is None
    assert dict(os.environ) == before


def test_another_size_of_a_study_is_another_model(tracking, mlflow_config, run_id, checkpoint_file):
    found = register_winner(
        tracking, mlflow_config, study="dimension@smoke", run_id=run_id, checkpoint=checkpoint_file
    )
    assert found.uri == "models:/dml-dimension_smoke@champion"


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
