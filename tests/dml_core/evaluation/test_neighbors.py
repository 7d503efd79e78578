"""The search is exact, blind to the order of the file, and never finds the query itself."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dml_core.evaluation import neighbors as module
from dml_core.evaluation.neighbors import (
    NeighborSearch,
    drop_self,
    iterate_neighbors,
    order_ties,
    query_blocks,
    shuffled_order,
)
from tests.references.retrieval import distances_to_gallery


def find_all(queries, gallery=None, **knobs):
    blocks = list(iterate_neighbors(queries, gallery, **knobs))
    covered = [row for block, _ in blocks for row in range(block.start, block.stop)]
    assert covered == list(range(len(queries)))
    return np.concatenate([indices for _, indices in blocks])


def assert_nearest_up_to_ties(found, queries, gallery, *, metric, tolerance=1e-5):
    """Each list holds distinct items whose distances are the smallest ones, in order."""
    expected = distances_to_gallery(queries, gallery, metric=metric)
    for row, pairs in zip(found, expected, strict=True):
        by_index = {index: distance for distance, index in pairs}
        assert len(set(row.tolist())) == len(row)
        distances = [by_index[int(index)] for index in row]
        smallest = sorted(by_index.values())[: len(row)]
        np.testing.assert_allclose(distances, smallest, atol=tolerance)


# Values on a coarse grid, so that ties and duplicates are common.
grids = hnp.arrays(
    np.float32,
    st.tuples(st.integers(2, 12), st.integers(1, 4)),
    elements=st.integers(-2, 2).map(float),
)


@settings(max_examples=60, deadline=None)
@given(grids, st.integers(1, 14), st.integers(1, 5), st.sampled_from(["cosine", "euclidean"]))
def test_neighbors_are_the_nearest_others_up_to_ties(embeddings, count, block_size, metric):
    before = embeddings.copy()
    found = find_all(embeddings, num_neighbors=count, metric=metric, block_size=block_size)
    assert found.shape == (len(embeddings), min(count, len(embeddings) - 1))
    assert_nearest_up_to_ties(found, embeddings, None, metric=metric)
    np.testing.assert_array_equal(embeddings, before)


@settings(max_examples=40, deadline=None)
@given(grids, st.integers(1, 9), st.sampled_from(["cosine", "euclidean"]), st.randoms())
def test_a_separate_gallery_is_searched_whole(queries, num_gallery, metric, random):
    gallery = np.array([random.choice(queries) for _ in range(num_gallery)], dtype=np.float32)
    found = find_all(queries, gallery, num_neighbors=20, metric=metric, block_size=3)
    assert found.shape == (len(queries), num_gallery)
    assert_nearest_up_to_ties(found, queries, gallery, metric=metric)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("count", [3, 150])
def test_blocks_change_no_neighbor(metric, count):
    embeddings = np.random.default_rng(0).standard_normal((300, 16)).astype(np.float32)
    whole = find_all(embeddings, num_neighbors=count, metric=metric, block_size=1000)
    for block_size in (1, 7, 64):
        parts = find_all(embeddings, num_neighbors=count, metric=metric, block_size=block_size)
        np.testing.assert_array_equal(parts, whole)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("count", [1, 10, 150])
def test_equal_distances_follow_the_shuffled_order_at_every_k(metric, count):
    embeddings = np.tile(np.array([[3.0, 4.0]], dtype=np.float32), (200, 1))
    found = find_all(embeddings, num_neighbors=count, metric=metric)
    order = shuffled_order(200)
    for query, row in enumerate(found):
        np.testing.assert_array_equal(row, order[order != query][:count])


def test_the_shuffled_order_is_fixed_and_no_file_order():
    np.testing.assert_array_equal(np.sort(shuffled_order(50)), np.arange(50))
    np.testing.assert_array_equal(shuffled_order(50), shuffled_order(50))
    assert abs(np.corrcoef(np.arange(5000), shuffled_order(5000))[0, 1]) < 0.05


def test_euclidean_order_survives_a_large_common_offset():
    # |x|² is about 512 x 1000², so float32 has steps of 32 there, where the distances are about
    # 1000: without centring two of three neighbours are wrong. Small searches do not show it,
    # since faiss multiplies out the square in larger ones only.
    random = np.random.default_rng(0)
    embeddings = (random.standard_normal((300, 512)) + 1000).astype(np.float32)
    found = find_all(embeddings, num_neighbors=3, metric="euclidean")
    wide = embeddings.astype(np.float64) - 1000
    lengths = (wide**2).sum(axis=1)
    distances = lengths[:, None] + lengths - 2 * wide @ wide.T
    np.fill_diagonal(distances, np.inf)
    np.testing.assert_array_equal(found, np.argsort(distances, axis=1)[:, :3])


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_euclidean_order_survives_tiny_and_huge_values(scale):
    line = (np.array([[0], [1], [3], [7]]) * scale).astype(np.float32)
    found = find_all(line, num_neighbors=3, metric="euclidean")
    assert found.tolist() == [[1, 2, 3], [0, 2, 3], [1, 0, 3], [2, 1, 0]]


def test_a_lone_image_has_no_neighbors():
    found = find_all(np.ones((1, 2), dtype=np.float32), num_neighbors=5, metric="cosine")
    assert found.shape == (1, 0)


def block_lengths(num_queries, **knobs):
    blocks = list(query_blocks(num_queries, **knobs))
    rows = [row for block in blocks for row in range(block.start, block.stop)]
    assert rows == list(range(num_queries))
    return [block.stop - block.start for block in blocks]


def test_blocks_are_shorter_where_rows_are_long(monkeypatch):
    monkeypatch.setattr(module, "MAX_BLOCK_ENTRIES", 100)
    assert block_lengths(30, block_size=20, row_length=10) == [10, 10, 10]
    assert block_lengths(2, block_size=9, row_length=999) == [1, 1]
    assert block_lengths(9, block_size=9, row_length=0) == [9]


def test_blocks_leave_no_short_remainder():
    assert block_lengths(1030, block_size=1024, row_length=1) == [515, 515]
    assert block_lengths(5, block_size=2, row_length=1) == [1, 2, 2]


def test_order_ties_sorts_within_equal_distances_only():
    distances = np.array([[1.0, 2.0, 2.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0, 5.0]])
    positions = np.array([[9, 7, 2, 5, 1], [4, 3, 2, 1, 0]])
    before = positions.copy()
    assert order_ties(distances, positions).tolist() == [[9, 2, 5, 7, 1], [4, 3, 2, 1, 0]]
    np.testing.assert_array_equal(positions, before)


def test_drop_self_removes_the_query_wherever_it_stands_or_else_the_last():
    # Queries 4, 5 and 6: first, in the middle, and crowded out by duplicates.
    neighbors = np.array([[4, 1, 2], [0, 5, 1], [0, 1, 2]])
    assert drop_self(neighbors, np.array([4, 5, 6])).tolist() == [[1, 2], [0, 1], [0, 1]]


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_chosen_queries_find_what_they_find_among_all(metric):
    embeddings = np.random.default_rng(1).standard_normal((30, 16)).astype(np.float32)
    search = NeighborSearch(embeddings, metric=metric, block_size=2)
    every = np.concatenate([found for _, found in search(5)])
    rows = np.array([3, 29, 4])
    blocks = list(search(5, rows))
    assert [block for block, _ in blocks] == [slice(0, 1), slice(1, 3)]
    np.testing.assert_array_equal(np.concatenate([found for _, found in blocks]), every[rows])
