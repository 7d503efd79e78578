"""Inputs that cannot be ranked are refused with what was found."""

import numpy as np
import pytest

from dml_core.evaluation.arrays import (
    check_continuous,
    check_embeddings,
    check_labels,
    check_ranks,
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
