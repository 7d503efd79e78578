"""An index of vectors: exact while there are few, a graph (HNSW) with measured recall above."""

# D = embedding dim, G = indexed vectors, K = neighbours, Q = queries

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import faiss
import numpy as np

from dml_core.evaluation.arrays import FloatArray, Frame, IntArray, Metric, check_embeddings
from dml_core.evaluation.neighbors import build_index
from dml_core.seeding import numpy_stream

Kind = Literal["flat", "hnsw"]

EXACT_BELOW = 100_000
"""From this number of vectors on, a graph is searched instead of all of them."""
LINKS = 32
"""Links of each vector in the graph: the usual choice for embeddings of 64 to 512 dimensions."""
BUILD_DEPTH = 64
"""Candidates per inserted vector. 200 took three times as long for the same recall, measured with
30,000 clustered vectors of 128 dimensions."""
WANTED_RECALL = 0.99
RECALL_AT = 10
NUM_RECALL_QUERIES = 500
_SEARCH_DEPTHS = (64, 128, 256, 512, 1024)
# Equal up to the rounding of a dot product in float32.
_TIE = 1e-5


@dataclass
class VectorIndex:
    """Vectors in faiss, by position.

    Cosine compares directions: vectors are stored with unit length, scores are similarities and
    larger is nearer. Euclidean: scores are distances and smaller is nearer.
    """

    metric: Metric
    kind: Kind
    recall: float
    """Share of the true nearest 10 that a search finds; 1 for an exact index."""
    _index: Any

    @classmethod
    def build(
        cls, embeddings: FloatArray, *, metric: Metric, exact_below: int = EXACT_BELOW
    ) -> Self:
        """Returns an index of (G, D) embeddings.

        Args:
            embeddings: finite, of any length.
            metric: how they are compared.
            exact_below: the number of vectors from which a graph replaces the exact search.
        """
        vectors = _place(embeddings, metric)
        if len(vectors) < exact_below:
            return cls(metric, "flat", 1.0, build_index(vectors, metric=metric))
        index = faiss.IndexHNSWFlat(vectors.shape[1], LINKS, _faiss_metric(metric))
        index.hnsw.efConstruction = BUILD_DEPTH
        index.add(vectors)
        found = cls(metric, "hnsw", 0.0, index)
        found.tune()
        return found

    def add(self, embeddings: FloatArray) -> None:
        """Adds (N, D) embeddings behind the others; call `tune` after the last ones."""
        self._index.add(_place(embeddings, self.metric))

    def tune(self) -> None:
        """Searches a graph deeper until its recall is as wanted, and notes the recall."""
        if self.kind == "flat":
            return
        vectors = self.vectors()
        for depth in _SEARCH_DEPTHS:
            self._index.hnsw.efSearch = depth
            self.recall = measure_recall(self, vectors)
            if self.recall >= WANTED_RECALL:
                return

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def vectors(self) -> FloatArray:
        """Returns the (G, D) vectors as they are stored."""
        return _to_array(self._index.reconstruct_n(0, len(self)))

    def vector(self, position: int) -> FloatArray:
        """Returns one (D,) vector as it is stored."""
        return _to_array(self._index.reconstruct(position))

    def search(self, queries: FloatArray, count: int) -> tuple[FloatArray, IntArray]:
        """Returns (Q, K) scores and positions, nearest first; K is at most the index's size."""
        count = min(count, len(self))
        found = self._index.search(_place(queries, self.metric), count)
        scores, positions = _to_array(found[0]), np.asarray(found[1])
        if self.metric == "euclidean":
            # faiss gives squares.
            scores = np.sqrt(np.maximum(scores, 0.0))
        return scores, positions

    def save(self, path: Path) -> None:
        """Writes the faiss file."""
        faiss.write_index(self._index, str(path))

    @classmethod
    def load(cls, path: Path, *, metric: Metric, kind: Kind, recall: float) -> Self:
        """Reads the faiss file of an index.

        Raises:
            ValueError: where the file is damaged.
        """
        try:
            return cls(metric, kind, recall, faiss.read_index(str(path)))
        except RuntimeError as error:
            reason = str(error).splitlines()[-1][:200]
            raise ValueError(f"the index {path} cannot be read: {reason}") from error


def _to_array(found: Any) -> FloatArray:
    """Returns numbers of faiss as an array.

    Once another library has imported faiss.contrib.torch_utils, as pytorch-metric-learning does,
    faiss gives tensors.
    """
    return np.asarray(found)


def measure_recall(index: VectorIndex, vectors: FloatArray) -> float:
    """Returns the share of the true nearest 10 vectors that the index finds.

    Sampled vectors of the index are the queries, each without itself. A vector as near as the true
    tenth counts as found, because the order of ties is arbitrary.

    Args:
        index: the index of these vectors.
        vectors: (G, D), as they are stored.
    """
    stream = numpy_stream(0, "retrieval.recall")
    rows = np.sort(stream.permutation(len(vectors))[:NUM_RECALL_QUERIES])
    # One more, for the query itself.
    count = min(RECALL_AT + 1, len(vectors))
    metric = _faiss_metric(index.metric)
    exact = _to_array(faiss.knn(vectors[rows], vectors, count, metric=metric)[0])
    found = _to_array(index._index.search(vectors[rows], count)[0])
    if index.metric == "cosine":
        hits = found >= exact[:, -1:] - _TIE
    else:
        hits = found <= exact[:, -1:] * (1 + _TIE)
    # The first place is the query's own.
    return float(hits[:, 1:].mean()) if count > 1 else 1.0


def _place(embeddings: FloatArray, metric: Metric) -> FloatArray:
    vectors = check_embeddings(embeddings)
    if metric == "cosine":
        return Frame.around(vectors, metric=metric).place(vectors)
    return np.ascontiguousarray(vectors)


def _faiss_metric(metric: Metric) -> int:
    return int(faiss.METRIC_INNER_PRODUCT if metric == "cosine" else faiss.METRIC_L2)
