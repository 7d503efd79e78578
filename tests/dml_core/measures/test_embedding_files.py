import faiss
import numpy as np
import pytest

from dml_core.measures.embeddings import write_embeddings
from tests.references.retrieval import rank_gallery


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_the_index_finds_what_the_metric_calls_near(tmp_path, metric):
    random = np.random.default_rng(0)
    embeddings = random.normal(size=(20, 3)).astype(np.float32) * random.uniform(1, 9, (20, 1))
    write_embeddings(embeddings, tmp_path, metric=metric)
    kept = np.load(tmp_path / "embeddings.npy")
    assert kept.dtype == np.float32
    np.testing.assert_array_equal(kept, embeddings.astype(np.float32))
    index = faiss.read_index(str(tmp_path / "index.faiss"))
    queries = random.normal(size=(5, 3)).astype(np.float32)
    if metric == "cosine":
        queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    _, found = index.search(queries, 20)
    assert found.tolist() == rank_gallery(queries, embeddings, metric=metric)
