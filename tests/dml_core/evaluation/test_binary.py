"""Bits are searched by Hamming distance with the scores of any other search."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dml_core.evaluation.neighbors import BinarySearch, pack_bits, shuffled_order
from tests.references.retrieval import distances_to_gallery


def find_all(queries, gallery=None, *, num_neighbors, rows=None, **knobs):
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
    found = find_all(embeddings, gallery, num_neighbors=count, block_size=3)
    expected = distances_to_gallery(embeddings, gallery, metric="hamming")
    for row, pairs in zip(found, expected, strict=True):
        by_index = {index: distance for distance, index in pairs}
        assert len(set(row.tolist())) == len(row) == min(count, len(pairs))
        assert [by_index[int(i)] for i in row] == sorted(by_index.values())[:count]
    np.testing.assert_array_equal(embeddings, before)


@pytest.mark.parametrize("count", [1, 10, 150])
def test_equal_codes_follow_the_shuffled_order_at_every_k(count):
    found = find_all(np.ones((200, 12), dtype=np.float32), num_neighbors=count)
    order = shuffled_order(200)
    for query, row in enumerate(found):
        np.testing.assert_array_equal(row, order[order != query][:count])


def test_blocks_change_no_neighbor():
    embeddings = np.random.default_rng(1).standard_normal((120, 8)).astype(np.float32)
    whole = find_all(embeddings, num_neighbors=30)
    np.testing.assert_array_equal(find_all(embeddings, num_neighbors=30, block_size=7), whole)


def test_chosen_queries_find_what_they_find_among_all():
    embeddings = np.random.default_rng(1).standard_normal((30, 16)).astype(np.float32)
    rows = np.array([3, 29, 4])
    every = find_all(embeddings, num_neighbors=5)
    np.testing.assert_array_equal(find_all(embeddings, num_neighbors=5, rows=rows), every[rows])
