import numpy as np
import pytest

from dml_core.evaluation.clustering import smallest_class_distances


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


def test_more_classes_than_there_are_give_those_that_there_are():
    embeddings = np.array([[1.0, 0.0], [0.0, 1.0]], dtype=np.float32)
    found = smallest_class_distances(embeddings, np.array([5, 2]), max_classes=36, metric="cosine")
    assert found == pytest.approx(np.array([[0, 2**0.5], [2**0.5, 0]]))


def test_equal_images_of_two_classes_have_no_distance():
    embeddings = np.full((4, 3), 0.1, dtype=np.float32)
    found = smallest_class_distances(
        embeddings, np.array([0, 1, 0, 1]), max_classes=2, metric="cosine"
    )
    assert found.tolist() == [[0, 0], [0, 0]]
