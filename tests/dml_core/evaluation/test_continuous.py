"""Mean label distance and nDCG agree with worked values and plain loops."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dml_core.evaluation import neighbors as neighbors_module
from dml_core.evaluation.continuous import nearest_label_distances, score_continuous
from dml_core.evaluation.neighbors import iterate_neighbors
from tests.references.continuous import mean_label_distance, ndcg
from tests.references.retrieval import rank_gallery


def score(queries, gallery, query_labels, gallery_labels, *, label_at, ndcg_at, block_size=1024):
    def find(num_neighbors):
        return iterate_neighbors(
            queries,
            gallery,
            num_neighbors=num_neighbors,
            metric="euclidean",
            block_size=block_size,
        )

    return score_continuous(
        find,
        query_labels,
        gallery_labels,
        label_at=label_at,
        ndcg_at=ndcg_at,
        block_size=block_size,
    )


def test_scores_of_a_worked_case():
    # One query with label 0; its neighbours in order have labels 3, 0 and 1, at distances
    # 3, 0, 1. Mean distance@1 = 3, @2 = 3/2.
    # DCG@2 = 1/4 / log2(2) + 1/1 / log2(3) = 0.25 + 0.63093; the best order 0, 1 gives
    # 1/1 / log2(2) + 1/2 / log2(3) = 1 + 0.31546. nDCG@2 = 0.88093 / 1.31546 = 0.66967.
    query, gallery = np.array([[0.0]], np.float32), np.array([[1.0], [2.0], [3.0]], np.float32)
    scores = score(
        query,
        gallery,
        np.array([[0.0]]),
        np.array([[3.0], [0.0], [1.0]]),
        label_at=(1, 2),
        ndcg_at=(2,),
    )
    assert scores.mean_label_distance_at == pytest.approx({1: 3, 2: 1.5})
    assert scores.ndcg_at[2] == pytest.approx(0.66967, abs=1e-5)


def test_embeddings_that_are_the_labels_score_one():
    labels = np.random.default_rng(0).standard_normal((40, 2))
    scores = score(
        labels.astype(np.float32), None, labels, None, label_at=(1,), ndcg_at=(1, 10, 39, 100)
    )
    assert scores.ndcg_at == pytest.approx(dict.fromkeys((1, 10, 39, 100), 1), abs=1e-6)


@st.composite
def labelled_sets(draw):
    # Embeddings on a line with irregular gaps: no two distances are alike, so no ties.
    num_all = draw(st.integers(3, 12))
    places = np.cumsum(1.0 + np.sqrt(np.arange(1, num_all + 1)))
    embeddings = draw(st.permutations(places.tolist()))
    labels = draw(
        hnp.arrays(
            np.float64,
            (num_all, draw(st.integers(1, 3))),
            elements=st.floats(-5, 5, allow_subnormal=False),
        )
    )
    return np.array(embeddings, dtype=np.float32)[:, None], labels


@settings(max_examples=80, deadline=None)
@given(labelled_sets(), st.integers(1, 5), st.booleans())
def test_scores_agree_with_plain_loops(case, block_size, has_gallery):
    embeddings, labels = case
    before = embeddings.copy(), labels.copy()
    query, gallery = (embeddings[:2], embeddings[2:]) if has_gallery else (embeddings, None)
    query_labels, gallery_labels = (labels[:2], labels[2:]) if has_gallery else (labels, None)
    scores = score(
        query,
        gallery,
        query_labels,
        gallery_labels,
        label_at=(1, 3, 20),
        ndcg_at=(2, 5, 30),
        block_size=block_size,
    )
    rankings = rank_gallery(query, gallery, metric="euclidean")
    searched = labels if gallery_labels is None else gallery_labels
    for k, value in scores.mean_label_distance_at.items():
        expected = mean_label_distance(rankings, query_labels, searched, k)
        assert value == pytest.approx(expected, abs=1e-9)
    for k, value in scores.ndcg_at.items():
        assert value == pytest.approx(ndcg(rankings, query_labels, searched, k), abs=1e-9)
    np.testing.assert_array_equal(embeddings, before[0])
    np.testing.assert_array_equal(labels, before[1])


def test_duplicate_labels_count_except_for_the_query_itself():
    labels = np.array([[1.0], [1.0], [4.0]])
    assert nearest_label_distances(labels, num_nearest=9).tolist() == [[0, 3], [0, 3], [3, 3]]
    apart = nearest_label_distances(labels[:1], labels, num_nearest=2)
    assert apart.tolist() == [[0, 0]]


def test_a_long_gallery_is_compared_in_shorter_blocks(monkeypatch):
    labels = np.random.default_rng(0).standard_normal((30, 2))
    whole = nearest_label_distances(labels, num_nearest=4)
    monkeypatch.setattr(neighbors_module, "MAX_BLOCK_ENTRIES", 70)
    np.testing.assert_array_equal(nearest_label_distances(labels, num_nearest=4), whole)


def test_only_the_configured_metrics_are_computed():
    labels = np.array([[0.0], [1.0], [5.0]])
    embeddings = labels.astype(np.float32)
    only_distance = score(embeddings, None, labels, None, label_at=(1,), ndcg_at=())
    # Nearest labels of 0, 1, 5 are at 1, 1 and 4.
    assert only_distance.named() == pytest.approx({"mean_label_distance_at_1": 2})
    only_ndcg = score(embeddings, None, labels, None, label_at=(), ndcg_at=(2,))
    assert only_ndcg.named() == pytest.approx({"ndcg_at_2": 1})
    assert score(embeddings, None, labels, None, label_at=(), ndcg_at=()).named() == {}


def test_a_lone_image_is_refused():
    with pytest.raises(ValueError, match=r"Got 0\. Evaluate more images"):
        score(np.ones((1, 1), np.float32), None, np.ones((1, 1)), None, label_at=(1,), ndcg_at=(1,))


def test_a_k_of_zero_is_refused_under_its_name():
    labels = np.array([[0.0], [1.0]])
    with pytest.raises(ValueError, match=r"evaluation\.ndcg_at .* Got \[0\]"):
        score(labels.astype(np.float32), None, labels, None, label_at=(1,), ndcg_at=(0,))
    with pytest.raises(ValueError, match=r"evaluation\.label_at .* Got \[-1\]"):
        score(labels.astype(np.float32), None, labels, None, label_at=(-1,), ndcg_at=(1,))


def test_the_reference_gain_is_the_textbook_one():
    # Guards the loops above: a perfect first rank alone has DCG 1 / log2(2) = 1.
    assert math.isclose(ndcg([[0]], [[2.0]], [[2.0]], 1), 1)
