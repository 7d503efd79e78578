import contextlib
import json
import shutil

import pytest
from typer.testing import CliRunner

from flows.cli import app


@pytest.fixture
def project(answered_project, tmp_path):
    folder = tmp_path / "project"
    shutil.copytree(answered_project, folder)
    with contextlib.chdir(folder):
        yield folder


def test_the_recommended_model_is_written_below_the_results(project):
    done = CliRunner().invoke(app, ["export", "flowers", "--format", "torch"])
    assert done.exit_code == 0, done.output
    (folder,) = (project / "results" / "flowers" / "export").iterdir()
    answer = json.loads((project / "reports" / "flowers" / "answer.json").read_text())
    assert folder.name.startswith(f"{answer['best_arm']}-seed")
    assert f"written to {folder.relative_to(project)}; its README.md says" in done.output
    names = {path.name for path in folder.iterdir()}
    assert names == {"README.md", "config.json", "embedding_model", "export.json", "model",
                     "requirements.txt", "weights.pt"}  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["flowers", "--arm", "tripletz"], "no arm 'tripletz'. Did you mean 'triplet'?"),
        (["flowers", "--format", "tflite"], "must be one of pyfunc, onnx, torch. Got 'tflite'"),
        (["flowers", "--output", "photos"], "photos has other content"),
        (["flowers", "--set", "training.epochs=9"], "no trained models yet. Run: dml run flowers"),
    ],
)
def test_mistakes_are_one_line(project, arguments, message):
    done = CliRunner().invoke(app, ["export", *arguments])
    assert isinstance(done.exception, ValueError)
    assert message in str(done.exception)
    assert "\n" not in str(done.exception)
