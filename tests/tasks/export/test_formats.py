"""Exports in every format, loaded by the lines of their model card without this project."""

import contextlib
import json
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

from dml_core.data.prepared import open_test
from dml_core.evaluation.evaluate import measure_spread
from dml_core.measures.model_scores import embed_with_checkpoint
from dml_core.training.checkpoint import load_checkpoint
from tasks.export.formats import FORMATS, export_model
from tasks.export.onnx_program import TOLERANCE, check_onnx
from tasks.export.winner import choose_model
from tasks.study import load_context
from tasks.tracking.packing import export_program
from tests.references.answered_projects import REQUEST

# Runs the lines of a card in its folder, where the packages of this project cannot be imported.
RUN = """
import json, sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in json.loads(sys.argv[3]):
            raise ImportError("blocked: " + name)
sys.meta_path.insert(0, Blocker())
given = {}
exec(open(sys.argv[1]).read(), given)
import numpy
numpy.save(sys.argv[2], given["embeddings"])
"""
OWN = ["dml_core", "tasks", "flows"]
UNWANTED = {"pyfunc": [], "onnx": ["torch", "mlflow"], "torch": ["mlflow"]}


@pytest.fixture(scope="module")
def exports(answered_project, tmp_path_factory):
    """The folder of each format, by its name, and the chosen model."""
    root = tmp_path_factory.mktemp("exports")
    with contextlib.chdir(answered_project):
        chosen = choose_model(load_context(REQUEST))
        for name in FORMATS:
            export_model(chosen, root / name, format=name)
    return root, answered_project / chosen.checkpoint


def read_lines(card):
    """Returns the lines of Python that a card gives."""
    (block,) = re.findall(r"```python\n(.*?)```", card.read_text(encoding="utf-8"), re.DOTALL)
    assert len(block.splitlines()) == 3
    return block


@pytest.mark.integration
@pytest.mark.parametrize("name", FORMATS)
def test_the_cards_lines_give_the_evaluations_embeddings_without_this_project(
    exports, answered_project, tmp_path, name
):
    root, file = exports
    checkpoint = load_checkpoint(file)
    with contextlib.chdir(answered_project):
        images, _ = open_test(checkpoint.config.data)
        wanted = embed_with_checkpoint(checkpoint, images)
    paths = [str(answered_project / "photos" / path) for path in images.paths]
    lines = read_lines(root / name / "README.md").replace('["photo.jpg"]', repr(paths))
    (tmp_path / "lines.py").write_text(lines)
    blocked = json.dumps([*OWN, *UNWANTED[name]])
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path / "lines.py"), str(tmp_path / "e.npy"), blocked],
        cwd=root / name,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert measure_spread(wanted) > 0.05
    np.testing.assert_allclose(np.load(tmp_path / "e.npy"), wanted, atol=TOLERANCE)


def test_a_card_has_scores_with_intervals_hashes_settings_and_the_licence(exports):
    root, file = exports
    text = (root / "onnx" / "README.md").read_text(encoding="utf-8")
    checkpoint = load_checkpoint(file)
    assert re.search(r"\| recall_at_1 \| \d\d\.\d % \| \d\d\.\d % \(.* to .*, 2 seeds\) \|", text)
    for part in (checkpoint.data_hash, checkpoint.split_hash, "| loss.name |", "| test images |"):
        assert part in text, part
    assert "trained from scratch in this study" in text
    # The question is text, no tag.
    assert "&lt;b>again" in text
    facts = json.loads((root / "onnx" / "export.json").read_text())
    assert facts["onnx_difference"] <= TOLERANCE
    assert facts["scores"]["recall_at_1"] > 0


def test_the_state_dict_loads_as_plain_tensors_and_is_the_checkpoints(exports):
    root, file = exports
    loaded = torch.load(root / "torch" / "weights.pt", weights_only=True)
    wanted = load_checkpoint(file).selected_model()
    assert loaded.keys() == wanted.keys()
    assert all(torch.equal(loaded[name], wanted[name]) for name in wanted)
    assert json.loads((root / "torch" / "config.json").read_text())["model.embedding_dim"] == 16


def test_an_onnx_file_of_other_weights_is_refused(exports, answered_project):
    root, file = exports
    other = load_checkpoint(file.parents[1] / "anchor-seed0" / "checkpoint.pt")
    with pytest.raises(ValueError, match=r"embeddings to 0\.0001\. They differ by 0\.\d"):
        check_onnx(other, export_program(other), root / "onnx" / "model" / "program.onnx")


def test_an_export_replaces_only_an_export(exports, answered_project, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with contextlib.chdir(answered_project):
        chosen = choose_model(load_context(REQUEST))
        with pytest.raises(ValueError, match=r"has other content.*--output"):
            export_model(chosen, tmp_path, format="torch")
        with pytest.raises(ValueError, match=r"one of pyfunc, onnx, torch\. Got 'tflite'"):
            export_model(chosen, tmp_path / "new", format="tflite")
        assert not (tmp_path / "new").exists()
        target = exports[0] / "torch"
        before = (target / "export.json").read_text()
        export_model(chosen, target, format="torch")
    assert (target / "export.json").read_text() == before
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
