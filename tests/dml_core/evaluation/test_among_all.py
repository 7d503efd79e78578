"""Tests of the search of vectors among themselves."""

import faiss
import numpy as np
import pytest

from dml_core.evaluation import among_all
from dml_core.evaluation.among_all import search_among_all
from dml_core.evaluation.spreading import Spread, run_here


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(among_all, "BLOCK", 16)
    monkeypatch.setattr(among_all, "STRIPE", 6)


def draw_vectors(count, dim=8):
    vectors = np.random.default_rng(0).standard_normal((count, dim), dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


# One block, whole blocks, and a last one that is shorter than a stripe.
@pytest.mark.parametrize(("count", "nearest"), [(7, 7), (16, 1), (48, 5), (67, 20), (67, 67)])
def test_products_and_positions_equal_those_of_a_full_search(small_blocks, count, nearest):
    vectors = draw_vectors(count)
    products = vectors.astype(np.float64) @ vectors.T.astype(np.float64)
    expected = np.argsort(-products, axis=1)[:, :nearest]
    found, positions = search_among_all(vectors, count=nearest)
    assert np.array_equal(positions, expected)
    assert np.allclose(found, np.take_along_axis(products, expected, axis=1), rtol=0, atol=1e-6)


def test_ties_are_decided_as_in_faiss(small_blocks):
    # Small whole numbers have no rounding, and many equal products.
    vectors = np.random.default_rng(1).integers(-2, 3, size=(70, 3)).astype(np.float32)
    index = faiss.IndexFlatIP(3)
    index.add(vectors)
    products, positions = index.search(vectors, 9)
    found, at = search_among_all(vectors, count=9)
    assert np.array_equal(found, products)
    assert [set(row) for row in at] == [set(row) for row in positions]


# Whole numbers have many ties; a part has one block, several, or more than there are.
@pytest.mark.parametrize(("part_size", "lanes"), [(1, 70), (16, 9), (16, 3), (40, 4), (1000, 1)])
@pytest.mark.parametrize("has_ties", [False, True])
def test_a_divided_search_has_the_same_bits(small_blocks, part_size, lanes, has_ties):
    vectors = draw_vectors(70)
    if has_ties:
        vectors = np.random.default_rng(1).integers(-2, 3, size=(70, 3)).astype(np.float32)
    whole = search_among_all(vectors, count=9)
    spread = Spread(run_here, part_size, lanes)
    divided = search_among_all(vectors, count=9, spread=spread)
    for expected, found in zip(whole, divided, strict=True):
        np.testing.assert_array_equal(found, expected)
