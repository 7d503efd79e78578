"""Tests of retrieval scores of images and synthetic points."""

import math
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

from dml_core.config.trial import EvaluationConfig
from dml_core.evaluation import retrieval
from dml_core.evaluation import retrieval as module
from dml_core.evaluation.evaluate import evaluate_embeddings
from dml_core.evaluation.neighbors import iterate_neighbors
from dml_core.evaluation.retrieval import (
    RetrievalScores,
    count_relevant,
    score_retrieval,
    score_synthetic,
)
from tests.references.expansion import pair_up, points_between
from tests.references.retrieval import DISTANCES, score_rankings


def cut_rankings(rankings, *, block_size=2):
    """Neighbours from complete rankings, as a search would give them."""

    def find(num_neighbors, rows=None):
        chosen = rankings if rows is None else [rankings[row] for row in rows]
        for start in range(0, len(chosen), block_size):
            block = slice(start, min(start + block_size, len(chosen)))
            found = [ranking[:num_neighbors] for ranking in chosen[block]]
            yield block, np.array(found, dtype=np.int64).reshape(len(found), -1)

    return find


def score_one(hits, *, recall_at=(1,)):
    """Scores of one query of class 1 whose ranked gallery has these hits."""
    gallery_labels = np.array(hits, dtype=np.int64)
    find = cut_rankings([list(range(len(hits)))], block_size=1)
    return score_retrieval(find, np.array([1]), gallery_labels, recall_at=recall_at)


def assert_agrees(scores, expected):
    assert scores.recall_at == pytest.approx(expected["recall_at"], nan_ok=True)
    assert scores.r_precision == pytest.approx(expected["r_precision"], nan_ok=True)
    assert scores.map_at_r == pytest.approx(expected["map_at_r"], nan_ok=True)
    assert scores.num_queries == expected["num_queries"]
    assert scores.num_queries_left_out == expected["num_queries_left_out"]


def test_hit_miss_hit_with_three_relevant_is_worth_five_ninths():
    # R = 3: hit, miss, hit -> (1/1 + 2/3) / 3 = 5/9; the third relevant item at rank 4 is late.
    scores = score_one([1, 0, 1, 1])
    assert scores.map_at_r == pytest.approx(5 / 9)
    assert scores.r_precision == pytest.approx(2 / 3)
    assert scores.recall_at == {1: 1.0}


def test_a_late_first_hit_counts_from_its_rank_on():
    # R = 1: the hit at rank 3 is within 3 and 4, not within 1 and 2, and not within R.
    scores = score_one([0, 0, 1, 0], recall_at=(1, 2, 3, 4, 100))
    assert scores.recall_at == {1: 0.0, 2: 0.0, 3: 1.0, 4: 1.0, 100: 1.0}
    assert (scores.r_precision, scores.map_at_r) == (0.0, 0.0)


def test_a_perfect_order_scores_one_everywhere():
    scores = score_one([1, 1, 1, 0], recall_at=(1, 2))
    assert scores == RetrievalScores({1: 1.0, 2: 1.0}, 1.0, 1.0, 1, 0)


@st.composite
def labelled_rankings(draw):
    """Random orders of a gallery, which is the set of queries itself in half of the cases."""
    ids = st.sampled_from([-5, 0, 1, 2**24, 2**24 + 1, 2**60])
    query_labels = draw(st.lists(ids, min_size=1, max_size=9))
    is_own_gallery = draw(st.booleans())
    gallery_labels = query_labels if is_own_gallery else draw(st.lists(ids, min_size=1, max_size=9))
    rankings = []
    for query in range(len(query_labels)):
        items = [i for i in range(len(gallery_labels)) if not (is_own_gallery and i == query)]
        rankings.append(draw(st.permutations(items)))
    return query_labels, gallery_labels, is_own_gallery, rankings


@settings(max_examples=150, deadline=None)
@given(labelled_rankings(), st.integers(1, 4))
def test_scores_agree_with_plain_loops(case, block_size):
    query_labels, gallery_labels, is_own_gallery, rankings = case
    recall_at = (1, 2, 5, 50)
    scores = score_retrieval(
        cut_rankings(rankings, block_size=block_size),
        np.array(query_labels, dtype=np.int64),
        None if is_own_gallery else np.array(gallery_labels, dtype=np.int64),
        recall_at=recall_at,
    )
    expected = score_rankings(rankings, query_labels, gallery_labels, recall_at=recall_at)
    assert_agrees(scores, expected)


@settings(max_examples=60, deadline=None)
@given(labelled_rankings())
def test_blocks_do_not_change_a_bit(case):
    query_labels, gallery_labels, is_own_gallery, rankings = case
    gallery = None if is_own_gallery else np.array(gallery_labels, dtype=np.int64)
    results = [
        score_retrieval(
            cut_rankings(rankings, block_size=block_size),
            np.array(query_labels, dtype=np.int64),
            gallery,
            recall_at=(1, 3),
        ).named()
        for block_size in (1, 2, 100)
    ]
    np.testing.assert_array_equal(list(results[0].values()), list(results[1].values()))
    np.testing.assert_array_equal(list(results[0].values()), list(results[2].values()))


@settings(max_examples=100, deadline=None)
@given(labelled_rankings(), st.integers(1, 4))
def test_a_search_in_two_steps_does_not_change_a_bit(case, block_size):
    query_labels, gallery_labels, is_own_gallery, rankings = case
    gallery = None if is_own_gallery else np.array(gallery_labels, dtype=np.int64)
    results = []
    for shallow in (1, 1000):
        with mock.patch.object(module, "SHALLOW", shallow):
            scores = score_retrieval(
                cut_rankings(rankings, block_size=block_size),
                np.array(query_labels, dtype=np.int64),
                gallery,
                recall_at=(1, 2, 3, 5, 9),
            )
        results.append(list(scores.named().values()))
    np.testing.assert_array_equal(*results)


def test_only_queries_without_a_near_hit_are_searched_deeply(monkeypatch):
    asked = []
    # Query 0 finds its class at rank 2, query 2 at rank 3; query 1 has nothing to find.
    search = cut_rankings([[1, 3, 2, 4], [4, 0, 2, 3], [1, 3, 4, 0], [0, 1, 2, 4], [2, 0, 1, 3]])

    def find(num_neighbors, rows=None):
        asked.append((num_neighbors, None if rows is None else rows.tolist()))
        return search(num_neighbors, rows)

    monkeypatch.setattr(module, "SHALLOW", 1)
    labels = np.array([1, 9, 2, 1, 2])
    scores = score_retrieval(find, labels, recall_at=(1, 2, 3, 4))
    assert asked == [(1, None), (4, [0, 2])]
    assert scores.recall_at == {1: 0.5, 2: 0.75, 3: 1.0, 4: 1.0}


def test_ids_above_two_to_the_24_do_not_merge():
    labels = np.array([2**24, 2**24 + 1, 2**24, 2**24 + 1], dtype=np.int64)
    find = cut_rankings([[1, 3, 2], [0, 2, 3], [1, 3, 0], [0, 2, 1]], block_size=2)
    assert score_retrieval(find, labels, recall_at=(1, 2, 3)).recall_at == {1: 0, 2: 0, 3: 1}


def test_relevant_items_are_counted_without_the_query():
    labels = np.array([7, 7, 7, 9, -1, -1])
    assert count_relevant(labels).tolist() == [2, 2, 2, 0, 1, 1]
    assert count_relevant(np.array([7, 8, 99]), labels).tolist() == [3, 0, 0]


def test_the_search_is_as_deep_as_the_larger_of_k_and_r():
    asked = []

    def find(num_neighbors):
        asked.append(num_neighbors)
        return cut_rankings([[1, 2], [0, 2], [0, 1]], block_size=3)(num_neighbors)

    labels = np.zeros(3, dtype=np.int64)
    score_retrieval(find, labels, recall_at=(1,))
    score_retrieval(find, labels, recall_at=(1, 40))
    score_retrieval(find, labels, recall_at=())
    assert asked == [2, 40, 2]


def test_without_any_relevant_item_scores_are_nan_and_all_queries_left_out():
    def find(num_neighbors):
        raise AssertionError("nothing can be found, so nothing is searched")

    scores = score_retrieval(find, np.array([1, 2, 3]), recall_at=(1,))
    assert math.isnan(scores.map_at_r)
    assert math.isnan(scores.recall_at[1])
    assert (scores.num_queries, scores.num_queries_left_out) == (0, 3)


def test_names_carry_the_prefix_and_no_counts():
    scores = RetrievalScores({1: 0.5, 10: 0.75}, 0.25, 0.125, 8, 0)
    assert scores.named("binary_") == {
        "binary_recall_at_1": 0.5,
        "binary_recall_at_10": 0.75,
        "binary_r_precision": 0.25,
        "binary_map_at_r": 0.125,
    }


def test_a_k_of_zero_is_refused():
    with pytest.raises(ValueError, match=r"recall_at .* Got \[0\]"):
        score_one([1], recall_at=(0, 1))


@pytest.mark.parametrize("has_gallery", [False, True])
def test_values_equal_those_of_pytorch_metric_learning(has_gallery):
    random = np.random.default_rng(3)
    embeddings = random.standard_normal((240, 8)).astype(np.float32)
    # Classes of 1 to 40 images, so that R differs and some queries have nothing to find.
    labels = np.sort(random.zipf(1.6, size=240).clip(max=30))
    embeddings[:, 0] += labels / 4
    is_query = random.random(240) < 0.4 if has_gallery else np.ones(240, dtype=bool)
    query, gallery = embeddings[is_query], embeddings[~is_query] if has_gallery else None
    query_labels, gallery_labels = labels[is_query], labels[~is_query] if has_gallery else None
    scores = score_retrieval(
        lambda k: iterate_neighbors(query, gallery, num_neighbors=k, metric="euclidean"),
        query_labels,
        gallery_labels,
        recall_at=(1,),
    )
    names = ("precision_at_1", "r_precision", "mean_average_precision_at_r")
    peer = AccuracyCalculator(include=names, k="max_bin_count").get_accuracy(
        query, query_labels, gallery, gallery_labels, ref_includes_query=False
    )
    assert scores.num_queries_left_out > 0
    assert scores.recall_at[1] == pytest.approx(peer["precision_at_1"], abs=1e-6)
    assert scores.r_precision == pytest.approx(peer["r_precision"], abs=1e-6)
    assert scores.map_at_r == pytest.approx(peer["mean_average_precision_at_r"], abs=1e-6)


def slow_recalls(embeddings, labels, *, points, metric, recall_at):
    """Each point by itself: all images but its two ends sorted by distance."""
    hits = {k: [] for k in recall_at}
    for first, second in pair_up(labels):
        others = [i for i in range(len(labels)) if i not in (first, second)]
        if not any(labels[i] == labels[first] for i in others):
            continue
        ends = embeddings[first].tolist(), embeddings[second].tolist()
        for point in points_between(*ends, points=points, normalize=metric == "cosine"):
            ranked = sorted(others, key=lambda i, p=point: DISTANCES[metric](p, embeddings[i]))
            for k in recall_at:
                hits[k].append(any(labels[i] == labels[first] for i in ranked[:k]))
    return {k: sum(found) / len(found) for k, found in hits.items()}


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("points", [1, 3])
def test_recalls_are_those_of_the_definition(metric, points):
    random = np.random.default_rng(points)
    # Classes of one, two and more images, in mixed order.
    labels = random.permutation(np.repeat([7, 3, 11, 5, 2], [1, 2, 5, 6, 9]))
    embeddings = random.normal(size=(len(labels), 4)).astype(np.float32)
    knobs = {"points": points, "metric": metric, "recall_at": (1, 2, 5)}
    found = score_synthetic(embeddings, labels, **knobs)
    assert found == pytest.approx(slow_recalls(embeddings, labels, **knobs))
    assert 0 < found[1] < found[5] < 1


@pytest.mark.parametrize("block_size", [1, 4, 7])
def test_blocks_change_no_number(block_size):
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), 5)
    embeddings = random.normal(size=(30, 3)).astype(np.float32)
    knobs = {"points": 4, "metric": "cosine", "recall_at": (1, 4)}
    whole = score_synthetic(embeddings, labels, **knobs)
    assert score_synthetic(embeddings, labels, block_size=block_size, **knobs) == whole


def test_no_more_points_than_a_block_holds_are_ever_made(monkeypatch):
    lengths = []
    make = retrieval._make_points

    def watch(*arguments, **knobs):
        made = make(*arguments, **knobs)
        lengths.append(len(made))
        return made

    monkeypatch.setattr(retrieval, "_make_points", watch)
    labels = np.repeat(np.arange(4), 10)
    embeddings = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    score_synthetic(embeddings, labels, points=8, metric="cosine", recall_at=(1,), block_size=16)
    assert sum(lengths) == 4 * 5 * 8
    assert max(lengths) <= 16


def test_the_ends_of_the_own_pair_are_no_hits():
    # On a line: a pair of class 0 with class 1 between its ends, and a third of class 0 far off.
    embeddings = np.array([[0.0], [2.0], [100.0], [1.1], [1.2], [1.3]], dtype=np.float32)
    labels = np.array([0, 0, 0, 1, 1, 1])
    found = score_synthetic(
        embeddings, labels, points=1, metric="euclidean", recall_at=(1, 2, 3, 4)
    )
    # The point of class 0 at 1.0 finds three of class 1 first; that of class 1 at 1.15 finds 1.3.
    assert found == {1: 0.5, 2: 0.5, 3: 0.5, 4: 1.0}


def test_equal_images_crowd_out_neither_hits_nor_ends():
    embeddings = np.ones((6, 2), dtype=np.float32)
    found = score_synthetic(
        embeddings, np.zeros(6, dtype=np.int64), points=2, metric="cosine", recall_at=(1,)
    )
    assert found == {1: 1.0}


def test_classes_of_two_images_leave_nothing_to_score():
    labels = np.array([0, 0, 1, 1, 2])
    embeddings = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    knobs = {"points": 3, "metric": "cosine", "recall_at": (1,)}
    assert score_synthetic(embeddings, labels, **knobs) == {}


def test_an_evaluation_names_synthetic_recalls_if_they_are_configured():
    random = np.random.default_rng(0)
    embeddings, labels = random.normal(size=(24, 4)), np.repeat(np.arange(4), 6)
    knobs = {"recall_at": (1, 3), "clustering": False}
    plain = evaluate_embeddings(
        embeddings, labels, config=EvaluationConfig(**knobs), metric="cosine"
    )
    more = evaluate_embeddings(
        embeddings, labels, config=EvaluationConfig(synthetic_points=2, **knobs), metric="cosine"
    )
    assert set(more) - set(plain) == {"synthetic_recall_at_1", "synthetic_recall_at_3"}
    assert {name: more[name] for name in plain} == plain
