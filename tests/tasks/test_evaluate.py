"""The evaluation of a study's winners, from their folders to the files of its stage."""

import csv
import json
from dataclasses import replace

import faiss
import numpy as np
import pytest

from dml_core.analysis.scored_study import find_shipped
from dml_core.data.prepared import open_test
from dml_core.measures.class_scores import read_classes
from dml_core.measures.model_scores import embed_with_checkpoint
from dml_core.measures.results import read_scores, write_scores
from dml_core.training.checkpoint import load_checkpoint
from tasks.evaluate import evaluate_study
from tasks.export.winner import choose_model
from tasks.study import StudyRequest, load_context
from tests.references.swept_projects import STUDY, add_swept_study
from tests.references.tiny_trials import prepare_tiny


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project whose one study was swept."""
    folder = tmp_path_factory.mktemp("project")
    prepare_tiny(folder / "data" / "prepared")
    add_swept_study(folder)
    return folder


@pytest.fixture(scope="module")
def evaluated(project):
    """Its folder after the evaluation, relative to the project."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project)
        written = evaluate_study.fn(StudyRequest(study="tiny"))
    return project / written.parent


def test_every_winner_is_scored(evaluated):
    scores = read_scores(evaluated).scores
    assert {arm: set(by_seed) for arm, by_seed in scores.items()} == {
        "anchor": {0, 1},
        "untrained": {0, 1},
    }


def test_the_shipped_model_is_of_the_recommended_arm_and_its_best_seed_on_validation(
    project, evaluated, monkeypatch, tmp_path
):
    monkeypatch.chdir(project)
    context = load_context(StudyRequest(study="tiny"))
    study, sweep = context.study, context.sweep_folder
    shipped = find_shipped(study, sweep_folder=sweep, evaluate_folder=evaluated)
    assert shipped == choose_model(context, arm="anchor").winner
    # Where the test says otherwise than the validation, the model follows the recommendation.
    scores = read_scores(evaluated)
    turned = {
        arm: {seed: {**each, "recall_at_1": float(arm == "untrained")} for seed, each in by.items()}
        for arm, by in scores.scores.items()
    }
    write_scores(replace(scores, scores=turned), tmp_path)
    assert find_shipped(study, sweep_folder=sweep, evaluate_folder=tmp_path).arm == "untrained"


def test_embeddings_and_index_are_of_the_best_model(project, evaluated, monkeypatch):
    monkeypatch.chdir(project)
    winner = project / "results" / "tiny" / "sweep" / "winners" / "anchor-seed0"
    checkpoint = load_checkpoint(winner / "checkpoint.pt")
    images, _ = open_test(checkpoint.config.data)
    embeddings = np.load(evaluated / "embeddings.npy")
    np.testing.assert_array_equal(embeddings, embed_with_checkpoint(checkpoint, images))
    index = faiss.read_index(str(evaluated / "index.faiss"))
    _, found = index.search(embeddings, 1)
    # An image's nearest is itself, but for another with the same embedding.
    np.testing.assert_allclose(embeddings[found[:, 0]], embeddings, atol=1e-3)


def test_the_map_shows_images_of_test_classes(project, evaluated, monkeypatch):
    monkeypatch.chdir(project)
    images, _ = open_test(load_context(StudyRequest(study="tiny")).project.trial.data)
    with open(evaluated / "embedding_map.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["class"] for row in rows} == set(images.class_names)
    assert len(rows) == len(images)


def test_the_best_model_is_scored_by_class(project, evaluated, monkeypatch):
    monkeypatch.chdir(project)
    images, _ = open_test(load_context(StudyRequest(study="tiny")).project.trial.data)
    classes = read_classes(evaluated)
    assert {score.name for score in classes} == set(images.class_names)
    hits = sum(score.recall_at_1 * score.num_queries for score in classes)
    scores = read_scores(evaluated).scores["anchor"][0]
    assert hits / len(images) == pytest.approx(scores["recall_at_1"], abs=1e-5)
    assert (evaluated / "worst_classes.png").is_file() == (scores["recall_at_1"] < 1)


def test_requested_measures_are_written(evaluated):
    measures = json.loads((evaluated / "measures.json").read_text())
    names = ("step_seconds", "memory_mib", "trained_parameters")
    assert set(measures["scalars"]) == {f"cost.{name}" for name in names}
    assert set(measures["curves"]["gradient.positive"]) == {"anchor", "untrained"}
    assert set(measures["curves"]["gradient.negative"]["anchor"]) == {"0", "1"}


def test_a_second_evaluation_gives_the_same_numbers(project, evaluated, monkeypatch):
    monkeypatch.chdir(project)
    names = ("scores.json", "embedding_map.csv", "embeddings.npy", "retrieval.png", "classes.csv")
    before = {name: (evaluated / name).read_bytes() for name in names}
    evaluate_study.fn(StudyRequest(study="tiny"))
    assert {name: (evaluated / name).read_bytes() for name in names} == before


def test_a_study_without_winners_says_what_to_do(project, monkeypatch):
    monkeypatch.chdir(project)
    (project / "studies" / "other.yaml").write_text(STUDY)
    with pytest.raises(FileNotFoundError, match="Run: dml run other"):
        evaluate_study.fn(StudyRequest(study="other"))
