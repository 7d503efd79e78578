"""k-means finds groups that are there, the same ones for the same seed."""

import numpy as np
import pytest

from dml_core.evaluation.clustering import cluster_embeddings, score_clustering

KNOBS = {"iterations": 20, "restarts": 5, "seed": 0}


@pytest.fixture
def circle_groups():
    """Five groups of ten on a circle, 72 degrees apart and 4 degrees wide; lengths differ."""
    angles = np.radians(np.repeat(np.arange(5) * 72, 10) + np.tile(np.linspace(-2, 2, 10), 5))
    lengths = np.tile(np.linspace(0.5, 2, 10), 5)
    points = np.stack([np.cos(angles), np.sin(angles)], axis=1) * lengths[:, None]
    return points.astype(np.float32), np.repeat(np.arange(5) + 2**40, 10)


def test_clear_groups_score_one(circle_groups):
    embeddings, labels = circle_groups
    before = embeddings.copy()
    scores = score_clustering(embeddings, labels, metric="cosine", **KNOBS)
    assert scores.nmi == pytest.approx(1)
    assert scores.pair_f1 == pytest.approx(1)
    np.testing.assert_array_equal(embeddings, before)


def test_cosine_ignores_length_and_euclidean_does_not():
    # Two rays, each with a short and a long bundle: directions or lengths split them.
    points = np.array([[1, 0.0], [9, 0.1], [1, 0.1], [9, -0.1], [-0.1, 1], [0.1, 9]])
    embeddings = points.astype(np.float32)
    by_direction = cluster_embeddings(embeddings, num_clusters=2, metric="cosine", **KNOBS)
    assert len(set(by_direction[:4])) == 1
    assert by_direction[4] == by_direction[5] != by_direction[0]
    by_place = cluster_embeddings(embeddings, num_clusters=3, metric="euclidean", **KNOBS)
    assert by_place[0] == by_place[2] == by_place[4]
    assert len({by_place[0], by_place[1], by_place[5]}) == 3


def test_the_seed_decides_the_clusters():
    embeddings = np.random.default_rng(0).standard_normal((200, 4)).astype(np.float32)
    knobs = {"num_clusters": 8, "metric": "euclidean", "iterations": 2, "restarts": 1}
    first = cluster_embeddings(embeddings, seed=1, **knobs)
    np.testing.assert_array_equal(first, cluster_embeddings(embeddings, seed=1, **knobs))
    assert (first != cluster_embeddings(embeddings, seed=2, **knobs)).any()


def spread_within(embeddings, clusters):
    groups = [embeddings[clusters == cluster] for cluster in np.unique(clusters)]
    return sum(((group - group.mean(axis=0)) ** 2).sum() for group in groups)


def test_restarts_never_widen_the_clusters():
    embeddings = np.random.default_rng(0).standard_normal((150, 2)).astype(np.float32)
    knobs = {"num_clusters": 12, "metric": "euclidean", "iterations": 30}
    for seed in range(3):
        one, many = (
            spread_within(
                embeddings, cluster_embeddings(embeddings, restarts=restarts, seed=seed, **knobs)
            )
            for restarts in (1, 10)
        )
        assert many <= one * 1.001


def test_every_image_takes_part_however_few_the_clusters():
    # faiss left to itself looks at 256 images a cluster, and its means are those of a sample.
    # With every image, the converged means are the means of their own clusters.
    embeddings = np.random.default_rng(0).standard_normal((3000, 1)).astype(np.float32)
    clusters = cluster_embeddings(
        embeddings, num_clusters=2, metric="euclidean", iterations=100, restarts=1, seed=0
    )
    means = np.array([embeddings[clusters == cluster].mean() for cluster in (0, 1)])
    np.testing.assert_array_equal(np.abs(embeddings - means).argmin(axis=1), clusters)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_one_class_scores_one(metric):
    embeddings = np.random.default_rng(0).standard_normal((7, 3)).astype(np.float32)
    scores = score_clustering(embeddings, np.full(7, 5), metric=metric, **KNOBS)
    assert (scores.nmi, scores.pair_f1) == (1, 1)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_as_many_clusters_as_images_keep_every_image_apart(metric):
    embeddings = np.eye(6, dtype=np.float32)
    scores = score_clustering(embeddings, np.arange(6), metric=metric, **KNOBS)
    assert scores.nmi == pytest.approx(1)


def test_more_clusters_than_distinct_embeddings_are_no_error():
    clusters = cluster_embeddings(
        np.ones((9, 2), dtype=np.float32), num_clusters=3, metric="cosine", **KNOBS
    )
    assert clusters.shape == (9,)
    assert ((clusters >= 0) & (clusters < 3)).all()
