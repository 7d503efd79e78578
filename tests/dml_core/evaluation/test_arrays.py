"""Tests of arrays of an evaluation."""

import numpy as np
import pytest

from dml_core.evaluation.arrays import (
    ROWS_AT_ONCE,
    Frame,
    check_continuous,
    check_embeddings,
    check_labels,
    check_ranks,
    split_by_role,
)


@pytest.mark.parametrize("shape", [(4,), (0, 3), (3, 0), (2, 2, 2)])
def test_embeddings_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match="Got shape " + str(shape).replace("(", r"\(")[:-1]):
        check_embeddings(np.zeros(shape, dtype=np.float32))


def test_embeddings_that_are_not_finite_are_refused_with_their_number():
    embeddings = np.zeros((5, 3), dtype=np.float32)
    embeddings[1, 0] = embeddings[1, 2] = np.nan
    embeddings[4, 1] = -np.inf
    with pytest.raises(ValueError, match="Got 2 of 5 rows"):
        check_embeddings(embeddings)


def test_wide_floats_beyond_float32_count_as_not_finite():
    with pytest.raises(ValueError, match="Got 1 of 2 rows"):
        check_embeddings(np.array([[1.0], [1e300]]))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_embeddings_of_any_float_type_become_float32(dtype):
    checked = check_embeddings(np.array([[1.5, -2.0]], dtype=dtype))
    assert checked.dtype == np.float32
    assert checked.tolist() == [[1.5, -2.0]]


def test_labels_as_floats_are_refused():
    with pytest.raises(ValueError, match=r"Got float32 of shape \(2,\)"):
        check_labels(np.zeros(2, dtype=np.float32), num_rows=2)


def test_labels_of_another_length_are_refused():
    with pytest.raises(ValueError, match=r"of shape \(3,\).*Got int64 of shape \(2,\)"):
        check_labels(np.zeros(2, dtype=np.int64), num_rows=3)


def test_narrow_labels_become_int64():
    assert check_labels(np.array([3, 1], dtype=np.int16), num_rows=2).dtype == np.int64


def test_continuous_labels_that_are_not_finite_are_refused_with_their_number():
    with pytest.raises(ValueError, match="Got 1 of 2 rows"):
        check_continuous(np.array([[1.0, 2.0], [np.nan, 0.0]]), num_rows=2)


@pytest.mark.parametrize("shape", [(2,), (3, 1), (2, 0)])
def test_continuous_labels_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match=r"shape \(2, columns\).*Got shape"):
        check_continuous(np.zeros(shape), num_rows=2)


def test_a_rank_below_one_is_refused():
    with pytest.raises(ValueError, match=r"evaluation\.recall_at .* Got \[0, -2\]"):
        check_ranks((1, 0, 5, -2), name="recall_at")


@pytest.mark.parametrize("roles", [None, np.array(["test"] * 3)])
def test_without_query_and_gallery_all_are_searched_among_all(roles):
    values = np.array([5, 6, 7])
    queries, gallery = split_by_role(roles, num_rows=3).split(values)
    assert queries.tolist() == [5, 6, 7]
    assert gallery is None


def test_queries_and_gallery_keep_their_order():
    sets = split_by_role(np.array(["gallery", "query", "gallery", "query"]), num_rows=4)
    queries, gallery = sets.split(np.array([[1], [2], [3], [4]]))
    assert queries.tolist() == [[2], [4]]
    assert gallery.tolist() == [[1], [3]]


@pytest.mark.parametrize("names", [["query"], ["gallery"], ["gallery", "query", "test"]])
def test_half_named_sets_are_refused_with_the_names(names):
    with pytest.raises(ValueError, match=f"Got \\{sorted(names)}"):
        split_by_role(np.array(names), num_rows=len(names))


def test_roles_of_another_length_are_refused():
    with pytest.raises(ValueError, match=r"each of the 3 images. Got shape \(2,\)"):
        split_by_role(np.array(["query", "gallery"]), num_rows=3)


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
