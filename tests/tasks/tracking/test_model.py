import base64
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import mlflow
import numpy as np
import pytest
import torch
from PIL import Image

from dml_core.config import resolve_trial_config
from dml_core.config.loading import to_flat_dict
from dml_core.data.image_decoding import pack_pixels
from dml_core.data.prepared import open_development
from dml_core.evaluation.evaluate import measure_spread
from dml_core.measures.model_scores import embed_with_checkpoint
from dml_core.models.building import build_model
from dml_core.training.checkpoint import load_checkpoint, save_checkpoint
from dml_core.training.determinism import seeded_torch
from tasks.tracking.embedding_loader import EmbeddingModel
from tasks.tracking.model import LOADER_TAG, promote_winner, register_winner
from tasks.tracking.packing import name_package, pack_model

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
    signature = model.metadata.signature
    said.append([str(signature.inputs), str(signature.outputs), sorted(model.metadata.flavors)])
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
    for inputs, outputs, flavors in json.loads(finished.stdout.splitlines()[-1]):
        # Named, and passed on as it is: MLflow would turn other types into tables.
        assert inputs == "['image': Any (required)]"
        assert "float32" in outputs
        assert flavors == ["python_function"]
    for name, path in files.items():
        checkpoint = load_checkpoint(path)
        wanted = embed_with_checkpoint(
            checkpoint, open_development(checkpoint.config.data).validation
        )
        assert measure_spread(wanted) > 0.1
        np.testing.assert_allclose(np.load(tmp_path / f"{name}.npy"), wanted, atol=1e-5)


@pytest.fixture
def serve(tmp_path):
    """Starts MLflow's own server of a model, and returns its address once it answers."""
    processes = []

    def start(uri, *, tracking):
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        flags = ["--env-manager", "local", "-h", "127.0.0.1", "-p", str(port), "-w", "1"]
        with open(tmp_path / "serve.log", "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "mlflow", "models", "serve", "-m", uri, *flags],
                cwd=tmp_path,
                stdout=log,
                stderr=log,
                env={
                    **os.environ,
                    "MLFLOW_TRACKING_URI": tracking.uri,
                    # MLflow starts uvicorn by its name.
                    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                },
                start_new_session=True,
            )
        processes.append(process)
        address, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 240
        while ask(f"{address}/ping")[0] != 200:
            assert process.poll() is None, (tmp_path / "serve.log").read_text()
            assert time.monotonic() < deadline, "the model's server did not start"
            time.sleep(0.5)
        return address

    yield start
    for process in processes:
        # The group is our own: the server was started as the leader of a new session.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()


def ask(address, content=None):
    """Returns the status and the text of an answer; 0 without an answer."""
    body = None if content is None else json.dumps(content).encode()
    request = urllib.request.Request(  # noqa: S310
        address, body, {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


@pytest.mark.integration
def test_a_served_model_answers_base64_images_and_reads_no_files(
    tmp_path, tracking, mlflow_config, run_id, checkpoint_file, images_and_embeddings, serve
):
    images, wanted = images_and_embeddings
    winner = register_winner(
        tracking, mlflow_config, study="dimension", run_id=run_id, checkpoint=checkpoint_file
    )
    file = tmp_path / "image.png"
    Image.fromarray(images[0, :, :, 0]).save(file)
    address = f"{serve(winner.uri, tracking=tracking)}/invocations"
    text = base64.b64encode(file.read_bytes()).decode()
    for content in (
        {"inputs": {"image": [text]}},
        {"inputs": [text]},
        {"inputs": images[:1].tolist()},
    ):
        status, answer = ask(address, content)
        assert status == 200, answer
        np.testing.assert_allclose(json.loads(answer)["predictions"], wanted[:1], atol=1e-5)
    status, answer = ask(address, {"inputs": [str(file)]})
    assert status >= 400
    assert "neither a file that exists nor base64 text" in answer


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
    changed = {name for name, _ in os.environ.items() ^ before.items()}
    # The first export of a process makes torch note where its cache is.
    assert changed <= {"TORCHINDUCTOR_CACHE_DIR"}


def test_another_size_of_a_study_is_another_model(tracking, mlflow_config, run_id, checkpoint_file):
    found = register_winner(
        tracking, mlflow_config, study="dimension@smoke", run_id=run_id, checkpoint=checkpoint_file
    )
    assert found.uri == "models:/dml-dimension_smoke@champion"


def test_a_winner_packed_by_other_code_is_packed_anew_and_stays_the_champion(
    tracking, mlflow_config, run_id, checkpoint_file
):
    def register(path):
        return register_winner(
            tracking, mlflow_config, study="dimension", run_id=run_id, checkpoint=path
        )

    client, name = tracking.client(), register(checkpoint_file).name
    assert client.get_model_version(name, "1").tags[LOADER_TAG] == name_package()
    client.set_model_version_tag(name, "1", LOADER_TAG, "dml_embedding_of_before")
    again = register(checkpoint_file)
    assert (again.version, again.is_champion) == ("2", True)
    assert register(checkpoint_file).version == "2"
    # One that is not the champion does not become it by being packed anew.
    other = checkpoint_file.parents[1] / "dim_8-seed1" / "checkpoint.pt"
    assert register(other).version == "3"
    client.set_model_version_tag(name, "3", LOADER_TAG, "dml_embedding_of_before")
    last = register(other)
    assert (last.version, last.is_champion) == ("4", False)
    assert str(client.get_model_version_by_alias(name, "champion").version) == "2"


def test_both_orders_of_axes_and_other_sizes_give_the_models_own_embeddings(
    tmp_path, checkpoint_file, images_and_embeddings
):
    images, wanted = images_and_embeddings
    pack_model(load_checkpoint(checkpoint_file), tmp_path)
    model = EmbeddingModel(tmp_path)
    np.testing.assert_array_equal(model.predict(images.transpose(0, 3, 1, 2)), wanted)
    np.testing.assert_allclose(model.predict(images[:1]), wanted[:1], atol=1e-6)
    # Another size is brought to that of the dataset, as its preparation does.
    large = images.repeat(2, axis=1).repeat(2, axis=2)
    packed = [pack_pixels(image[:, :, 0], model.choices) for image in large]
    assert packed[0].shape == images[0].shape
    np.testing.assert_array_equal(model.predict(large), model.predict(np.stack(packed)))


def test_inputs_that_are_no_images_are_refused(tmp_path, checkpoint_file):
    pack_model(load_checkpoint(checkpoint_file), tmp_path)
    model = EmbeddingModel(tmp_path)
    with pytest.raises(ValueError, match=r"image 0 .* Got float64 with the shape \(28, 28, 1\)"):
        model.predict(np.zeros((1, 28, 28, 1)))
    with pytest.raises(ValueError, match=r"1, 3 or 4 channels.*Got the shape \(1, 28, 28, 5\)"):
        model.predict(np.zeros((1, 28, 28, 5), dtype=np.uint8))
