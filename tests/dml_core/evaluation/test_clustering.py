"""Tests of clustering and class distances."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import normalized_mutual_info_score
from sklearn.metrics.cluster import pair_confusion_matrix

from dml_core.evaluation.clustering import (
    cluster_embeddings,
    conditional_entropy_by_cluster,
    count_contingency,
    entropy_bits,
    nmi_score,
    pair_f1_score,
    score_clustering,
    smallest_class_distances,
)
from tests.references.clustering import nmi, pair_f1

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


groupings = st.integers(1, 25).flatmap(
    lambda n: st.tuples(
        st.lists(st.sampled_from([0, 1, 2, 2**24, 2**24 + 1, -7]), min_size=n, max_size=n),
        st.lists(st.integers(0, 6), min_size=n, max_size=n),
    )
)


def count(labels, clusters):
    return count_contingency(np.array(labels, dtype=np.int64), np.array(clusters, dtype=np.int64))


def test_one_cluster_adds_its_share_of_the_conditional_entropy():
    # Cluster 1 has 10 of 20 items: 3 of class a, 7 of class b, none of class c. It adds
    # -1/2 (0.3 log2 0.3 + 0.7 log2 0.7) = 0.4406 bits; the pure cluster 2 adds nothing.
    labels = [0] * 3 + [1] * 7 + [2] * 10
    clusters = [1] * 10 + [2] * 10
    added = conditional_entropy_by_cluster(count(labels, clusters))
    np.testing.assert_allclose(added, [0.4406, 0], atol=5e-5)


def test_four_equal_groups_have_two_bits():
    assert entropy_bits(np.array([5, 5, 5, 5])) == pytest.approx(2)
    assert entropy_bits(np.array([9])) == 0


def test_nmi_and_f1_of_a_worked_case():
    # Classes aabb in clusters 1 1 1 2. H(Y) = 1, H(C) = 0.8113, H(Y|C) = 3/4 * 0.9183 = 0.6887,
    # so NMI = 2 * 0.3113 / 1.8113 = 0.3437. Same-cluster pairs 3, same-class pairs 2, both 1:
    # F1 = 2 * 1 / (3 + 2) = 0.4.
    contingency = count([0, 0, 1, 1], [1, 1, 1, 2])
    assert nmi_score(contingency) == pytest.approx(0.3437, abs=5e-5)
    assert pair_f1_score(contingency) == pytest.approx(0.4)


@settings(max_examples=150, deadline=None)
@given(groupings)
def test_scores_agree_with_plain_loops(case):
    labels, clusters = case
    contingency = count(labels, clusters)
    assert nmi_score(contingency) == pytest.approx(nmi(labels, clusters), abs=1e-12)
    assert pair_f1_score(contingency) == pytest.approx(pair_f1(labels, clusters), abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(groupings)
def test_scores_agree_with_scikit_learn(case):
    labels, clusters = case
    contingency = count(labels, clusters)
    peer = normalized_mutual_info_score(labels, clusters, average_method="arithmetic")
    assert nmi_score(contingency) == pytest.approx(peer, abs=1e-9)
    if len(labels) > 1:
        (_, false_positive), (false_negative, true_positive) = pair_confusion_matrix(
            labels, clusters
        )
        pairs = 2 * true_positive + false_positive + false_negative
        expected = 2 * true_positive / pairs if pairs else 1.0
        assert pair_f1_score(contingency) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("score", [nmi_score, pair_f1_score])
def test_scores_ignore_names_order_and_which_grouping_comes_first(score):
    random = np.random.default_rng(0)
    labels, clusters = random.integers(0, 5, 60), random.integers(0, 7, 60)
    value = score(count(labels, clusters))
    order = random.permutation(60)
    assert score(count(labels[order], clusters[order])) == pytest.approx(value)
    assert score(count(100 - 3 * labels, clusters)) == pytest.approx(value)
    assert score(count(clusters, labels)) == pytest.approx(value)


@pytest.mark.parametrize("score", [nmi_score, pair_f1_score])
def test_equal_groupings_score_one_also_with_one_class_or_one_image(score):
    assert score(count([4, 4, 9, 9, 1], [0, 0, 2, 2, 1])) == pytest.approx(1)
    assert score(count([3, 3, 3], [0, 0, 0])) == 1
    assert score(count([3], [0])) == 1
    assert score(count([1, 2, 3], [5, 6, 7])) == pytest.approx(1)


def test_one_cluster_for_many_classes_has_no_information():
    assert nmi_score(count([0, 1, 2, 3], [0, 0, 0, 0])) == 0


def test_ten_thousand_classes_need_no_full_table():
    random = np.random.default_rng(0)
    labels, clusters = random.integers(0, 10_000, 50_000), random.integers(0, 10_000, 50_000)
    tracemalloc.start()
    contingency = count_contingency(labels, clusters)
    value = nmi_score(contingency)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # A full table would take 10,000 x 10,000 x 8 bytes = 800 MB.
    assert peak < 20e6
    assert 0 < value < 1


def slow_distances(embeddings, labels, *, max_classes, metric):
    """Every image of one class with every image of the other."""
    rows = embeddings.astype(np.float64)
    if metric == "cosine":
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    classes = sorted(set(labels.tolist()))[:max_classes]
    return [[nearest(rows[labels == a], rows[labels == b]) for b in classes] for a in classes]


def nearest(first, second):
    return min(np.linalg.norm(x - y) for x in first for y in second)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("block_size", [1, 5, 1024])
def test_distances_are_those_of_the_nearest_images(metric, block_size):
    random = np.random.default_rng(0)
    labels = random.permutation(np.repeat([9, 4, 20, 6, 1], [3, 1, 5, 2, 4]))
    embeddings = (100 + 5 * random.normal(size=(15, 3))).astype(np.float32)
    knobs = {"max_classes": 4, "metric": metric}
    found = smallest_class_distances(embeddings, labels, block_size=block_size, **knobs)
    assert found == pytest.approx(np.array(slow_distances(embeddings, labels, **knobs)), abs=1e-5)
    assert np.array_equal(found, found.T)


def test_more_classes_than_exist_are_cut_to_those_that_exist():
    embeddings = np.array([[1.0, 0.0], [0.0, 1.0]], dtype=np.float32)
    found = smallest_class_distances(embeddings, np.array([5, 2]), max_classes=36, metric="cosine")
    assert found == pytest.approx(np.array([[0, 2**0.5], [2**0.5, 0]]))


def test_equal_images_of_two_classes_have_no_distance():
    embeddings = np.full((4, 3), 0.1, dtype=np.float32)
    found = smallest_class_distances(
        embeddings, np.array([0, 1, 0, 1]), max_classes=2, metric="cosine"
    )
    assert found.tolist() == [[0, 0], [0, 0]]
