"""dml prepare, as a user runs it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flows.commands import prepare as command
from tasks.study import StudyRequest, is_prepared, load_context
from tests.references.drawn_datasets import write_tree

ROOT = Path(__file__).parents[3]
POSES = """
question: Do drawings with the same rotation come first?
arms: {log_ratio: {loss.name: log_ratio}, dense_triplet: {loss.name: dense_triplet}}
fixed:
  data.name: glyphs
  data.alias: poses
  data.max_classes: 12
  data.images_per_class: 4
  data.continuous_labels: [rotation]
  sampler.name: dense
  sampler.batch_size: 8
  sampler.anchors_per_batch: 1
  sampler.nearest: 2
  evaluation.label_at: [1]
  evaluation.ndcg_at: [10]
seeds: [0]
figure: {kind: bar, x: arm, y: test.ndcg_at_10}
"""
DML = Path(sys.executable).with_name("dml")
VALUES = ("name=folder", "alias=birds", "raw=photos", "image_size_px=16", "color=rgb")


@pytest.fixture
def project(tmp_path):
    """A folder with params.yaml, and photos of which one is in training and in the test."""
    shutil.copyfile(ROOT / "params.yaml", tmp_path / "params.yaml")
    write_tree(tmp_path / "photos", num_classes=8)
    shutil.copyfile(tmp_path / "photos/c07/1.png", tmp_path / "photos/c00/2.png")
    return tmp_path


def prepare(project, *values):
    sets = [part for value in (*VALUES, *values) for part in ("--set", f"data.{value}")]
    return subprocess.run(
        [str(DML), "prepare", "--workers", "1", *sets],
        cwd=project, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


def test_a_leak_ends_the_command_with_the_pairs_and_their_list(project):
    done = prepare(project)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    said = " ".join(done.stderr.split())
    assert "dml: dataset 'birds' must not have an image in two of train, validation" in said
    assert "Found 1 copy, all listed in data/prepared/birds.leaks.csv" in said
    assert "- 'c00/2.png' (" in said
    assert "and 'c07/1.png' (test): same bytes" in said
    assert "set data.on_leak: drop removes them from the training side, allow keeps them" in said
    rows = (project / "data/prepared/birds.leaks.csv").read_text().splitlines()
    assert len(rows) == 2
    assert '"c00/2.png"' in rows[1]
    assert not (project / "data/prepared/birds").exists()


def test_dropped_leaks_and_other_duplicates_are_reported(project):
    shutil.copyfile(project / "photos/c06/0.png", project / "photos/c06/1.png")
    done = prepare(project, "on_leak=drop")
    assert done.returncode == 0, done.stderr
    assert "birds: 11 images of 4 classes to develop on, 12 of 4 held back" in done.stdout
    assert "duplicates    1 image equal to one of another split, dropped" in done.stdout
    assert "duplicates    1 image equal to another of the same class" in done.stdout
    assert "listed in duplicates.csv" in done.stdout
    assert (project / "data/prepared/birds/duplicates.csv").exists()
    assert not (project / "data/prepared/birds.leaks.csv").exists()


def test_the_data_of_a_study_are_prepared_by_its_name(tmp_path, monkeypatch, capsys):
    shutil.copyfile(ROOT / "params.yaml", tmp_path / "params.yaml")
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "poses.yaml").write_text(POSES)
    monkeypatch.chdir(tmp_path)
    command.prepare("poses", workers=1)
    assert "poses: " in capsys.readouterr().out
    request = StudyRequest(study="poses")
    assert all(is_prepared(data) for data in load_context(request).datasets)
    assert [folder.name for folder in (tmp_path / "data/prepared").glob("[!.]*")] == ["poses"]
    with pytest.raises(ValueError, match="--profile is one of a study, which is missing"):
        command.prepare(profile="smoke")
