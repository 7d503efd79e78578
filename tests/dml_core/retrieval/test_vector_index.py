import numpy as np
import pytest

from dml_core.retrieval.vector_index import (
    RECALL_AT,
    WANTED_RECALL,
    VectorIndex,
    measure_recall,
)


def draw_vectors(num_vectors, *, dim=16, seed=0):
    return np.random.default_rng(seed).normal(size=(num_vectors, dim)).astype(np.float32)


def search_slowly(vectors, query, *, metric, count):
    """The definition: every score, sorted."""
    if metric == "cosine":
        lengths = [float(np.linalg.norm(vector)) for vector in vectors]
        scores = [
            float(vector @ query) / (length * float(np.linalg.norm(query)))
            for vector, length in zip(vectors, lengths, strict=True)
        ]
        order = sorted(range(len(vectors)), key=lambda row: -scores[row])
    else:
        scores = [float(np.linalg.norm(vector - query)) for vector in vectors]
        order = sorted(range(len(vectors)), key=lambda row: scores[row])
    return order[:count], [scores[row] for row in order[:count]]


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_an_exact_index_finds_what_the_definition_finds(metric):
    vectors, queries = draw_vectors(60), draw_vectors(4, seed=1)
    index = VectorIndex.build(vectors, metric=metric)
    assert (index.kind, index.recall) == ("flat", 1.0)
    scores, positions = index.search(queries, 5)
    for query, row_scores, row in zip(queries, scores, positions, strict=True):
        order, expected = search_slowly(vectors, query, metric=metric, count=5)
        assert row.tolist() == order
        np.testing.assert_allclose(row_scores, expected, atol=1e-5)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_from_the_limit_on_a_graph_is_searched_whose_recall_is_measured(metric):
    vectors = draw_vectors(3000)
    assert VectorIndex.build(vectors, metric=metric, exact_below=3001).kind == "flat"
    index = VectorIndex.build(vectors, metric=metric, exact_below=3000)
    assert index.kind == "hnsw"
    assert index.recall >= WANTED_RECALL
    # The same by the definition, over queries of our own choice, the query itself left out.
    exact = VectorIndex.build(vectors, metric=metric)
    _, found = index.search(vectors[:50], RECALL_AT + 1)
    _, wanted = exact.search(vectors[:50], RECALL_AT + 1)
    shares = [len(set(a[1:]) & set(b[1:])) / RECALL_AT for a, b in zip(found, wanted, strict=True)]
    assert np.mean(shares) > 0.95


def test_the_recall_of_a_graph_that_is_searched_too_shallowly_is_below_one():
    vectors = draw_vectors(3000, dim=64)
    index = VectorIndex.build(vectors, metric="cosine", exact_below=1)
    index._index.hnsw.efSearch = 1
    assert measure_recall(index, index.vectors()) < 0.95


def test_equal_vectors_do_not_lower_the_recall():
    vectors = np.repeat(draw_vectors(5), 40, axis=0)
    index = VectorIndex.build(vectors, metric="cosine", exact_below=1)
    assert index.recall == 1.0


@pytest.mark.parametrize("exact_below", [1, 1000])
def test_an_index_grows_and_comes_back_from_its_file(tmp_path, exact_below):
    vectors = draw_vectors(80)
    index = VectorIndex.build(vectors[:50], metric="cosine", exact_below=exact_below)
    index.add(vectors[50:])
    index.tune()
    index.save(tmp_path / "i.faiss")
    again = VectorIndex.load(
        tmp_path / "i.faiss", metric="cosine", kind=index.kind, recall=index.recall
    )
    assert len(again) == 80
    scores, positions = again.search(vectors, 1)
    assert positions[:, 0].tolist() == list(range(80))
    np.testing.assert_allclose(scores, 1.0, atol=1e-5)
    # Any length is fine, and more neighbours than vectors are not found.
    assert again.search(7 * vectors[3:4], 500)[1].shape == (1, 80)
    np.testing.assert_allclose(again.vector(3), vectors[3] / np.linalg.norm(vectors[3]), atol=1e-6)


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "i.faiss").write_bytes(b"no index")
    with pytest.raises(ValueError, match=r"i\.faiss cannot be read"):
        VectorIndex.load(tmp_path / "i.faiss", metric="cosine", kind="flat", recall=1.0)
