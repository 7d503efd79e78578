"""A search that compares each pair once finds what a search of all with all finds."""

import faiss
import numpy as np
import pytest

from dml_core.config.trial import EvaluationConfig
from dml_core.evaluation import neighbors
from dml_core.evaluation import neighbors as pairs_once
from dml_core.evaluation.evaluate import evaluate_embeddings
from dml_core.evaluation.neighbors import NeighborSearch, fits_in_memory, search_among_all


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(pairs_once, "BLOCK", 16)
    monkeypatch.setattr(pairs_once, "STRIPE", 6)


def draw_vectors(count, dim=8):
    vectors = np.random.default_rng(0).standard_normal((count, dim), dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


# One block, whole blocks, and a last one that is shorter than a stripe.
@pytest.mark.parametrize(("count", "nearest"), [(7, 7), (16, 1), (48, 5), (67, 20), (67, 67)])
def test_products_and_positions_are_those_of_all_with_all(small_blocks, count, nearest):
    vectors = draw_vectors(count)
    products = vectors.astype(np.float64) @ vectors.T.astype(np.float64)
    expected = np.argsort(-products, axis=1)[:, :nearest]
    found, positions = search_among_all(vectors, count=nearest)
    assert np.array_equal(positions, expected)
    assert np.allclose(found, np.take_along_axis(products, expected, axis=1), rtol=0, atol=1e-6)


def test_of_equal_ones_it_takes_those_that_faiss_takes(small_blocks):
    # Small whole numbers have no rounding, and many equal products.
    vectors = np.random.default_rng(1).integers(-2, 3, size=(70, 3)).astype(np.float32)
    index = faiss.IndexFlatIP(3)
    index.add(vectors)
    products, positions = index.search(vectors, 9)
    found, at = search_among_all(vectors, count=9)
    assert np.array_equal(found, products)
    assert [set(row) for row in at] == [set(row) for row in positions]


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_a_large_search_gives_the_neighbours_of_a_small_one(small_blocks, metric):
    vectors = draw_vectors(61)
    both = [
        list(NeighborSearch(vectors, metric=metric, block_size=10, compare_once_from=once)(5))
        for once in (0, 61)
    ]
    for (block, expected), (same_block, found) in zip(*both, strict=True):
        assert block == same_block
        assert np.array_equal(found, expected)


def test_what_it_may_not_do_is_searched_in_the_index(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("compared at once")

    monkeypatch.setattr(neighbors, "search_among_all", refuse)
    vectors = draw_vectors(30)
    for search in (
        NeighborSearch(vectors, metric="cosine", compare_once_from=31),
        NeighborSearch(vectors, vectors[:20], metric="cosine", compare_once_from=1),
        NeighborSearch(vectors, metric="euclidean", compare_once_from=1),
    ):
        assert len(list(search(3))) == 1
    once = NeighborSearch(vectors, metric="cosine", compare_once_from=30)
    assert len(list(once(3, np.array([4, 2])))) == 1
    with pytest.raises(AssertionError, match="compared at once"):
        list(once(3))
    monkeypatch.setattr(pairs_once, "MAX_RESULT_BYTES", 30 * 4 * 12 - 1)
    assert not fits_in_memory(30, 4)
    assert len(list(once(3))) == 1


def test_all_numbers_stay_what_they_were(small_blocks):
    vectors, labels = draw_vectors(90, dim=16), np.arange(90) % 7
    numbers = [
        evaluate_embeddings(
            vectors, labels, metric="cosine",
            config=EvaluationConfig(recall_at=(1, 4, 40), compare_once_from=once),
        )
        for once in (0, 1)
    ]  # fmt: skip
    assert numbers[0] == numbers[1]
