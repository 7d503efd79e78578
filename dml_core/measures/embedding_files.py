"""Keeps a model's embeddings of a set of images, ready to be searched."""

from pathlib import Path

import faiss
import numpy as np

from dml_core.evaluation.arrays import FloatArray
from dml_core.evaluation.neighbors import build_index
from dml_core.evaluation.vectors import Frame, Metric

EMBEDDINGS_FILE = "embeddings.npy"
INDEX_FILE = "index.faiss"


def write_embeddings(embeddings: FloatArray, folder: Path, *, metric: Metric) -> None:
    """Writes embeddings.npy and index.faiss, row by row in the order of the images.

    The index searches exactly: by inner product of unit vectors under cosine, so queries must be
    of unit length too, and otherwise by Euclidean distance of the embeddings as they are.
    """
    folder.mkdir(parents=True, exist_ok=True)
    vectors = np.ascontiguousarray(embeddings, dtype=np.float32)
    np.save(folder / EMBEDDINGS_FILE, vectors)
    if metric == "cosine":
        vectors = Frame.around(vectors, metric=metric).place(vectors)
    faiss.write_index(build_index(vectors, metric=metric), str(folder / INDEX_FILE))
