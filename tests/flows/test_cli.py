"""The command line as a user runs it, in its own processes."""

import json
import os
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DML = Path(sys.executable).with_name("dml")
TINY = [
    "data.max_classes=16",
    "data.images_per_class=8",
    "sampler.batch_size=16",
    "sampler.class_ratio=null",
    "sampler.samples_per_class=4",
    "model.width=4",
    "training.epochs=2",
    "evaluation.kmeans_iterations=5",
]


def run(folder, *arguments, sets=()):
    flags = [flag for value in sets for flag in ("--set", value)]
    return subprocess.run(
        [str(DML), *arguments, *flags],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with params.yaml and the prepared tiny dataset."""
    path = tmp_path_factory.mktemp("project")
    (path / "params.yaml").write_text((ROOT / "params.yaml").read_text())
    done = run(path, "prepare", sets=TINY)
    assert done.returncode == 0, done.stderr
    assert "64 images of 8 classes to develop on, 64 of 8 held back" in done.stdout
    return path


def test_help_answers_at_once():
    started = time.perf_counter()
    done = run(ROOT, "--help")
    seconds = time.perf_counter() - started
    assert done.returncode == 0
    for command in ("prepare", "train", "evaluate", "baseline", "losses"):
        assert command in done.stdout
    # A second on an idle machine; the tests share theirs, so the bound is loose.
    assert seconds < 3


def test_help_lists_the_commands_in_groups():
    text = run(ROOT, "--help").stdout
    titles = re.findall(r"^(\S.*):$", text, re.MULTILINE)
    assert titles[:2] == ["Options", "Answer a question"]
    assert "Others" not in titles
    group = text.partition("Answer a question:")[2].partition("\n\n")[0]
    assert re.search(r"^  run +Answer studies", group, re.MULTILINE)
    assert " stage " not in text


def test_the_version_is_printed_with_the_place_of_the_sources(tmp_path):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    said = run(ROOT, "--version")
    assert said.stdout == f"dml {project['version']} from {ROOT}\n"
    assert said.returncode == 0


def test_outside_of_a_project_nothing_is_written_and_the_way_to_one_is_named(tmp_path):
    done = run(tmp_path, "run", "main")
    assert done.returncode == 2
    assert done.stderr == (
        "dml: dml run needs a project folder, with params.yaml and studies/ in it. Got "
        f"{tmp_path}, which has no params.yaml. Change to your project's folder, or make one: "
        "dml init FOLDER\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_help_imports_nothing_heavy():
    code = (
        "import sys, flows.cli; "
        "print([m for m in ('torch', 'numpy', 'pydantic', 'rich.table') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_train_then_evaluate(folder):
    trained = run(folder, "train", "--output", "run", sets=TINY)
    assert trained.returncode == 0, trained.stderr
    assert "epoch   2/2" in trained.stdout
    assert "validation, best epoch" in trained.stdout
    assert "recall_at_1" in trained.stdout
    evaluated = run(folder, "evaluate", "run", sets=["evaluation.occlusion=[0.3]"])
    assert evaluated.returncode == 0, evaluated.stderr
    (record,) = (folder / "run").glob("*-test.json")
    scores = json.loads(record.read_text())["scores"]
    wanted = {"recall_at_1", "recall_at_8", "map_at_r", "r_precision", "nmi", "pair_f1"}
    assert wanted | {"occluded_center_0.3_recall_at_1"} <= set(scores)
    assert scores["num_queries"] == 64


def test_training_again_has_nothing_to_do(folder):
    run(folder, "train", "--output", "again", sets=TINY)
    again = run(folder, "train", "--output", "again", sets=TINY)
    assert "resuming after epoch 2 of 2" in again.stdout
    assert "epoch   2/2" not in again.stdout
    assert "validation, best epoch" in again.stdout


def test_baseline_prints_the_scores_of_raw_pixels(folder):
    done = run(folder, "baseline", sets=TINY)
    assert done.returncode == 0, done.stderr
    assert "pixels, validation of glyphs" in done.stdout
    assert "recall_at_1" in done.stdout
    assert run(folder, "baseline", "--of", "features", sets=TINY).returncode == 0


def test_losses_are_listed_with_their_knobs():
    done = run(ROOT, "losses")
    assert "loss.alpha = 32.0" in done.stdout
    assert "loss.expansion.points = 0" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "sets", "message"),
    [
        (["train"], ["loss.alph=1"], "loss.alph is not a known parameter"),
        (["train"], ["data.prepared_root=nowhere"], "Run: dml prepare"),
        (["train"], ["data.noise=0.5"], "data.noise was 0.05, and is 0.5 now"),
        (["train"], [*TINY, "sampler.batch_size=4000"], "requests 1000 classes per batch"),
        (["prepare"], ["data.name=cub200"], "data.raw"),
        (["evaluate", "absent.pt"], [], "absent.pt does not exist"),
        (["baseline", "--split", "train"], TINY, "--split must be test or validation"),
        (["train", "--params", "none.yaml"], [], "none.yaml has 1 problem"),
        (["train"], [*TINY, "training.device=cuda"], "needs a CUDA GPU"),
        (["train"], [*TINY, "model.backbone=timm:resnet1888"], "resnet18"),
    ],
)
def test_mistakes_end_in_a_message_and_no_traceback(folder, arguments, sets, message):
    done = run(folder, *arguments, sets=sets)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
