"""The frame keeps the order of distances and saves float32 from its limits."""

import numpy as np
import pytest

from dml_core.evaluation.arrays import ROWS_AT_ONCE, Frame


@pytest.fixture
def embeddings():
    return np.random.default_rng(0).standard_normal((20, 5)).astype(np.float32)


def squared_distances(vectors):
    wide = vectors.astype(np.float64)
    return ((wide[:, None] - wide[None]) ** 2).sum(axis=2)


def test_cosine_gives_unit_length_whatever_the_scale(embeddings):
    for scale in (1e-30, 1.0, 1e30):
        scaled = (embeddings * scale).astype(np.float32)
        placed = Frame.around(scaled, metric="cosine").place(scaled)
        np.testing.assert_allclose(np.linalg.norm(placed, axis=1), 1, rtol=1e-6)


def test_cosine_leaves_a_zero_vector_at_zero():
    zeros = np.zeros((2, 3), dtype=np.float32)
    assert Frame.around(zeros, metric="cosine").place(zeros).tolist() == zeros.tolist()


def test_euclidean_scales_all_distances_by_one_factor(embeddings):
    frame = Frame.around(embeddings, metric="euclidean")
    placed = squared_distances(frame.place(embeddings)) * frame.scale**2
    np.testing.assert_allclose(placed, squared_distances(embeddings), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_euclidean_entries_lie_within_one_and_not_far_below(embeddings, scale):
    scaled = (embeddings * scale).astype(np.float32)
    largest = np.abs(Frame.around(scaled, metric="euclidean").place(scaled)).max()
    assert 0.5 <= largest <= 1


def test_euclidean_places_equal_vectors_at_the_origin():
    equal = np.full((3, 2), 7, dtype=np.float32)
    assert not Frame.around(equal, metric="euclidean").place(equal).any()


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_rows_beyond_one_chunk_are_placed_alike(metric):
    rows = np.random.default_rng(1).standard_normal((ROWS_AT_ONCE + 3, 2)).astype(np.float32)
    before = rows.copy()
    frame = Frame.around(rows, metric=metric)
    placed = frame.place(rows)
    np.testing.assert_array_equal(placed[-5:], frame.place(rows[-5:]))
    np.testing.assert_array_equal(rows, before)


def test_an_unknown_metric_is_refused_by_name(embeddings):
    with pytest.raises(ValueError, match="Got 'manhattan'"):
        Frame.around(embeddings, metric="manhattan")
