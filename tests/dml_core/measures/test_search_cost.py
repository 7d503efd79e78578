"""Quantised and approximate indexes: what they find, store and take."""

import numpy as np
import pytest

from dml_core.data.prepared import ImageSet, map_images, open_development, open_test
from dml_core.evaluation.evaluate import evaluate_embeddings
from dml_core.measures import search_cost
from dml_core.measures.model_scores import evaluate_checkpoint
from dml_core.measures.results import list_winners
from dml_core.measures.search_cost import (
    SearchBudget,
    build_search_index,
    make_task,
    measure_search_cost,
    score_index,
)
from dml_core.studies.metrics import SEARCH_INDEXES, SEARCH_METRICS, is_higher_better, unit_of
from dml_core.training.checkpoint import load_checkpoint, save_checkpoint
from dml_core.training.determinism import limited_threads
from dml_core.training.trial import run_trial
from tests.references.tiny_trials import prepare_tiny, tiny_config

DIM = 32


def make_images(folder, labels, roles):
    count = len(labels)
    (folder / "images.bin").write_bytes(bytes(count))
    return ImageSet(
        packed=map_images(folder / "images.bin", np.arange(count), np.ones((count, 2), int), 1),
        labels=labels,
        class_names=tuple(map(str, range(int(labels.max()) + 1))),
        roles=roles,
        paths=[str(number) for number in range(count)],
        continuous=np.empty((count, 0)),
    )


def make_classes(folder, *, count=600, has_roles=False):
    """Noisy classes of about eight images; one image has no other of its class."""
    random = np.random.default_rng(0)
    labels = np.append(np.arange(count - 1) % (count // 8), count // 8)
    centers = random.normal(size=(count // 8 + 1, DIM))
    embeddings = (centers[labels] + random.normal(size=(count, DIM))).astype(np.float32)
    roles = np.where(np.arange(count) % 7 == 0, "query", "gallery")
    roles = roles if has_roles else np.full(count, "test")
    return embeddings, make_images(folder, labels, roles)


def build_all(task):
    with limited_threads(1):
        return {kind: build_search_index(kind, task) for kind in SEARCH_INDEXES}


@pytest.mark.parametrize("has_roles", [False, True])
@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_floats_and_bits_score_as_an_evaluation_does(tmp_path, metric, has_roles):
    embeddings, images = make_classes(tmp_path, has_roles=has_roles)
    indexes = build_all(task := make_task(embeddings, images, metric=metric))
    scores = evaluate_embeddings(
        embeddings, images.labels, roles=images.roles, metric=metric, binary=True, clustering=False
    )
    assert len(task.queries) == scores["num_queries"]
    found = {kind: score_index(index, task) for kind, index in indexes.items()}
    assert found["float32"] == pytest.approx(scores["recall_at_1"], abs=1e-12)
    assert found["bits"] == pytest.approx(scores["binary_recall_at_1"], abs=1e-12)
    # A byte a dimension loses next to nothing, and the others less than bits do.
    assert found["int8"] == pytest.approx(found["float32"], abs=0.01)
    assert all(found[kind] > found["bits"] for kind in ("int8", "pq", "hnsw", "ivf"))


def test_ties_are_scored_as_an_evaluation_does(tmp_path):
    _, images = make_classes(tmp_path)
    alike = np.ones((len(images), DIM), dtype=np.float32)
    task = make_task(alike, images, metric="cosine")
    scores = evaluate_embeddings(alike, images.labels, clustering=False, binary=True)
    for kind, name in (("float32", "recall_at_1"), ("bits", "binary_recall_at_1")):
        assert score_index(build_search_index(kind, task), task) == pytest.approx(scores[name])


def test_an_image_takes_the_bytes_of_its_code(tmp_path):
    embeddings, images = make_classes(tmp_path)
    task = make_task(embeddings, images, metric="cosine")
    sizes = {kind: index.bytes_per_image(600) for kind, index in build_all(task).items()}
    # 32 floats of 4 bytes; a byte a dimension; a byte for 4 dimensions; a bit a dimension.
    assert [sizes[kind] for kind in ("float32", "int8", "pq", "bits")] == [128, 32, 8, 4]
    # Floats with up to 64 links of 4 bytes, or with a number of 8 bytes.
    assert 128 + 32 * 4 < sizes["hnsw"] < 128 + 100 * 4
    assert sizes["ivf"] == pytest.approx(128 + 8, abs=1)


@pytest.mark.parametrize("count", [9, 17])
def test_few_images_are_enough(tmp_path, count):
    embeddings, images = make_classes(tmp_path, count=count)
    task = make_task(embeddings[:, :7].copy(), images, metric="euclidean")
    assert all(0 <= score_index(index, task) <= 1 for index in build_all(task).values())


@pytest.fixture(scope="module")
def winners(tmp_path_factory):
    root = tmp_path_factory.mktemp("searched")
    prepare_tiny(root / "prepared")
    for seed in (0, 1):
        config = tiny_config(root / "prepared", seed=seed, training__epochs=1)
        path = root / "winners" / f"anchor-seed{seed}" / "checkpoint.pt"
        run_trial(
            config,
            open_development(config.data),
            on_epoch_end=lambda _, state, path=path: save_checkpoint(state, path),
        )
    return root / "winners"


def test_every_index_is_measured_by_seed_and_timed_in_alternating_rounds(winners, monkeypatch):
    timed, take = [], search_cost.time_queries

    def watch(index, task, *, count):
        timed.append(type(index.index).__name__)
        return take(index, task, count=count)

    monkeypatch.setattr(search_cost, "time_queries", watch)
    measured = measure_search_cost(list_winners(winners), SearchBudget(rounds=3, queries=5))
    assert set(measured.scalars) == {f"search.{name}" for name in SEARCH_METRICS}
    for name, by_arm in measured.scalars.items():
        keys = {0, 1, 2} if name.endswith("second") else {0, 1}
        assert set(by_arm["anchor"]) == keys, name
        assert all(value >= 0 for value in by_arm["anchor"].values())
    # A warm-up and three rounds, of the first seed alone.
    kinds = timed[: len(SEARCH_INDEXES)]
    assert len(set(kinds)) == len(SEARCH_INDEXES)
    assert timed == kinds * 4
    checkpoint = load_checkpoint(winners / "anchor-seed1" / "checkpoint.pt")
    images, _ = open_test(checkpoint.config.data)
    scores = evaluate_checkpoint(checkpoint, images, evaluation=checkpoint.config.evaluation)
    assert measured.scalars["search.float32_recall_at_1"]["anchor"][1] == scores["recall_at_1"]


def test_directions_and_units_of_the_numbers():
    assert is_higher_better("search.int8_recall_at_1")
    assert not is_higher_better("search.int8_bytes")
    assert is_higher_better("search.int8_queries_per_second")
    assert unit_of("search.int8_bytes").name == " B"
    assert unit_of("search.hnsw_recall_at_1").is_share
