import numpy as np
import pytest

from dml_core.config.trial import EvaluationConfig
from dml_core.evaluation import retrieval
from dml_core.evaluation.evaluate import evaluate_embeddings
from dml_core.evaluation.retrieval import score_synthetic
from tests.references.expansion import pair_up, points_between
from tests.references.retrieval import DISTANCES


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


def test_an_evaluation_gives_them_by_name_where_they_are_asked_for():
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
