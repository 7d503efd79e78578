"""Tests of the exact search for neighbours."""

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dml_core.config.trial import EvaluationConfig
from dml_core.evaluation import among_all, neighbors
from dml_core.evaluation import neighbors as module
from dml_core.evaluation.evaluate import evaluate_embeddings
from dml_core.evaluation.neighbors import (
    MAX_NEIGHBORS,
    BinarySearch,
    NeighborSearch,
    PlacedIndex,
    drop_self,
    iterate_neighbors,
    order_ties,
    pack_bits,
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


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(among_all, "BLOCK", 16)
    monkeypatch.setattr(among_all, "STRIPE", 6)


def draw_vectors(count, dim=8):
    vectors = np.random.default_rng(0).standard_normal((count, dim), dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


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


def test_other_searches_use_the_index(monkeypatch):
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
    monkeypatch.setattr(among_all, "MAX_RESULT_BYTES", 30 * 4 * 12 - 1)
    assert not among_all.fits_in_memory(30, 4)
    assert len(list(once(3))) == 1


def test_symmetric_products_change_no_score(small_blocks):
    vectors, labels = draw_vectors(90, dim=16), np.arange(90) % 7
    numbers = [
        evaluate_embeddings(
            vectors, labels, metric="cosine",
            config=EvaluationConfig(recall_at=(1, 4, 40), compare_once_from=once),
        )
        for once in (0, 1)
    ]  # fmt: skip
    assert numbers[0] == numbers[1]


def find_all_binary(queries, gallery=None, *, num_neighbors, rows=None, **knobs):
    blocks = BinarySearch(queries, gallery, **knobs)(num_neighbors, rows)
    return np.concatenate([indices for _, indices in blocks])


def test_eight_dimensions_make_a_byte_and_the_rest_is_zero():
    # Positive at 0, 7 and 8: 1000 0001 and 1000 0000; zero itself is no positive value.
    embeddings = np.full((1, 10), -1, dtype=np.float32)
    embeddings[0, [0, 7, 8]] = 0.5
    embeddings[0, 9] = 0
    assert pack_bits(embeddings).tolist() == [[0b10000001, 0b10000000]]


def test_bits_do_not_depend_on_the_length_of_a_vector():
    embeddings = np.random.default_rng(0).standard_normal((5, 13)).astype(np.float32)
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    np.testing.assert_array_equal(pack_bits(embeddings), pack_bits(unit))


tables = hnp.arrays(
    np.float32,
    st.tuples(st.integers(2, 10), st.integers(1, 19)),
    elements=st.sampled_from([-1.0, 0.0, 2.0]),
)


@settings(max_examples=60, deadline=None)
@given(tables, st.integers(1, 12), st.booleans())
def test_neighbors_are_the_nearest_by_hamming_distance(embeddings, count, has_gallery):
    before = embeddings.copy()
    gallery = embeddings[::2] if has_gallery else None
    found = find_all_binary(embeddings, gallery, num_neighbors=count, block_size=3)
    expected = distances_to_gallery(embeddings, gallery, metric="hamming")
    for row, pairs in zip(found, expected, strict=True):
        by_index = {index: distance for distance, index in pairs}
        assert len(set(row.tolist())) == len(row) == min(count, len(pairs))
        assert [by_index[int(i)] for i in row] == sorted(by_index.values())[:count]
    np.testing.assert_array_equal(embeddings, before)


@pytest.mark.parametrize("count", [1, 10, 150])
def test_equal_codes_follow_the_shuffled_order_at_every_k(count):
    found = find_all_binary(np.ones((200, 12), dtype=np.float32), num_neighbors=count)
    order = shuffled_order(200)
    for query, row in enumerate(found):
        np.testing.assert_array_equal(row, order[order != query][:count])


def test_blocks_change_no_binary_neighbor():
    embeddings = np.random.default_rng(1).standard_normal((120, 8)).astype(np.float32)
    whole = find_all_binary(embeddings, num_neighbors=30)
    np.testing.assert_array_equal(
        find_all_binary(embeddings, num_neighbors=30, block_size=7), whole
    )


def test_chosen_queries_find_the_same_binary_neighbors():
    embeddings = np.random.default_rng(1).standard_normal((30, 16)).astype(np.float32)
    rows = np.array([3, 29, 4])
    every = find_all_binary(embeddings, num_neighbors=5)
    np.testing.assert_array_equal(
        find_all_binary(embeddings, num_neighbors=5, rows=rows), every[rows]
    )


EMBEDDINGS = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
LABELS = np.arange(40) // 4


@pytest.fixture
def cards(monkeypatch):
    """Says what was searched on cards and which k-means were found there."""
    said = {"searches": [], "kmeans": []}

    class OnCards:
        def __init__(self, index):
            self.index = index

        def search(self, queries, count):
            said["searches"].append(count)
            return self.index.search(queries, count)

    kmeans = faiss.Kmeans

    def make_kmeans(*arguments, gpu, **options):
        said["kmeans"].append(gpu)
        return kmeans(*arguments, **options)

    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1)
    monkeypatch.setattr(faiss, "index_cpu_to_all_gpus", OnCards)
    monkeypatch.setattr(faiss, "Kmeans", make_kmeans)
    return said


def evaluate(device):
    config = EvaluationConfig(search_device=device)
    return evaluate_embeddings(EMBEDDINGS, LABELS, config=config, metric="cosine")


def test_an_evaluation_on_gpus_searches_and_clusters_there(cards):
    found = evaluate("gpu")
    assert cards["searches"]
    assert cards["kmeans"] == [True]
    assert found == evaluate("cpu")
    assert cards["kmeans"] == [True, False]


def test_searches_beyond_the_limit_of_a_gpu_run_on_the_cpu(cards):
    vectors = np.ones((MAX_NEIGHBORS + 2, 2), np.float32)
    index = faiss.IndexFlatL2(2)
    index.add(vectors)
    placed = PlacedIndex(index, "gpu")
    for count in (MAX_NEIGHBORS, MAX_NEIGHBORS + 1):
        assert placed.search(vectors[:1], count)[1].shape == (1, count)
    assert cards["searches"] == [MAX_NEIGHBORS]


def test_the_default_is_the_cpu(cards):
    evaluate(EvaluationConfig().search_device)
    assert cards["searches"] == []


def test_without_a_gpu_the_error_says_what_to_do():
    with pytest.raises(ValueError, match=r"search_device=gpu needs a GPU .* sees none"):
        evaluate("gpu")
