"""Writes a model's embeddings of a set of images, and draws a 2-D map of them."""

# D = embedding dim, M = images on the map, N = images

import csv
from dataclasses import dataclass
from pathlib import Path

import faiss
import numpy as np
from threadpoolctl import threadpool_limits

from dml_core.data.prepared import ImageSet
from dml_core.data.spreadsheet_cells import protect_cell
from dml_core.evaluation.arrays import DoubleArray, FloatArray, Frame, IntArray, Metric
from dml_core.evaluation.neighbors import build_index
from dml_core.seeding import numpy_stream

EMBEDDINGS_FILE = "embeddings.npy"
INDEX_FILE = "index.faiss"


def write_embeddings(embeddings: FloatArray, folder: Path, *, metric: Metric) -> None:
    """Writes embeddings.npy and index.faiss, with one row per image in their order.

    The index is exact. For cosine it uses the inner product of unit vectors, so queries must have
    unit length too; otherwise it uses the Euclidean distance of the embeddings.
    """
    folder.mkdir(parents=True, exist_ok=True)
    vectors = np.ascontiguousarray(embeddings, dtype=np.float32)
    np.save(folder / EMBEDDINGS_FILE, vectors)
    if metric == "cosine":
        vectors = Frame.around(vectors, metric=metric).place(vectors)
    faiss.write_index(build_index(vectors, metric=metric), str(folder / INDEX_FILE))


MAX_CLASSES = 12
"""More colours are hard to distinguish."""
MAX_IMAGES = 1000
_MAX_COMPONENTS = 50
_ITERATIONS = 400
_FEWEST_FOR_TSNE = 10
_SMALLEST_SPREAD = 1e-9
_DECIMALS = 4


@dataclass(frozen=True)
class EmbeddingMap:
    """Images as points in the plane."""

    images: IntArray
    """(M,) indices of the images, class by class."""
    points: DoubleArray
    """(M, 2) coordinates without a unit; only neighbourhood has a meaning."""


def make_embedding_map(
    embeddings: FloatArray,
    images: ImageSet,
    *,
    metric: Metric,
    max_classes: int = MAX_CLASSES,
    max_images: int = MAX_IMAGES,
) -> EmbeddingMap:
    """Returns a t-SNE map of sampled images of sampled classes, the same for every model.

    t-SNE runs on the first 50 principal components and starts from the first two. The same
    embeddings give the same map on one machine. Fewer than 10 images are placed by their first two
    principal components.

    Args:
        embeddings: (N, D) embeddings of all images.
        images: the embedded images.
        metric: for cosine the embeddings are scaled to unit length first.
        max_classes: most classes, drawn at random.
        max_images: most images, divided equally among the classes.
    """
    chosen = _choose_images(images.labels, max_classes=max_classes, max_images=max_images)
    vectors = Frame.around(embeddings[chosen], metric=metric).place(embeddings[chosen])
    # With several threads the order of summation would change the points.
    with threadpool_limits(1):
        return EmbeddingMap(chosen, _lay_out(vectors.astype(np.float64)))


def write_embedding_map(drawn: EmbeddingMap, images: ImageSet, path: Path) -> Path:
    """Writes a map as CSV with the columns x, y and class, and returns its path.

    A class name that a spreadsheet would read as a formula is prefixed with an apostrophe.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["x", "y", "class"])
        for image, (x, y) in zip(drawn.images, drawn.points.round(_DECIMALS), strict=True):
            name = protect_cell(images.class_names[images.labels[image]])
            writer.writerow([float(x), float(y), name])
    return path


def _choose_images(labels: IntArray, *, max_classes: int, max_images: int) -> IntArray:
    stream = numpy_stream(0, "measures.embedding_map")
    classes = np.sort(stream.permutation(np.unique(labels))[:max_classes])
    per_class = max(1, max_images // len(classes))
    members = [stream.permutation(np.flatnonzero(labels == label)) for label in classes]
    return np.concatenate([np.sort(rows[:per_class]) for rows in members]).astype(np.int64)


def _lay_out(vectors: DoubleArray) -> DoubleArray:
    """Returns (M, 2) points of (M, D) vectors."""
    # Late: the import takes a second.
    from sklearn.manifold import TSNE

    num_rows = len(vectors)
    reduced = _principal_components(vectors)
    # The second column stays zero with one dimension or one image.
    start = np.zeros((num_rows, 2))
    start[:, : min(2, reduced.shape[1])] = reduced[:, :2]
    spread = float(start[:, 0].std())
    if num_rows < _FEWEST_FOR_TSNE or spread < _SMALLEST_SPREAD:
        return start
    # The usual initialisation of t-SNE: the components, scaled close to the origin.
    tsne = TSNE(
        init=start / spread * 1e-4,
        perplexity=min(30.0, (num_rows - 1) / 3),
        max_iter=_ITERATIONS,
        random_state=0,
    )
    points: DoubleArray = tsne.fit_transform(reduced).astype(np.float64)
    return points


def _principal_components(vectors: DoubleArray) -> DoubleArray:
    """Returns the (M, K) coordinates along the directions of most variance, K at most 50."""
    centered = vectors - vectors.mean(axis=0)
    _, _, directions = np.linalg.svd(centered, full_matrices=False)
    directions = directions[:_MAX_COMPONENTS]
    # The sign of a direction is arbitrary; its largest entry decides it, so that maps do not flip.
    largest = np.abs(directions).argmax(axis=1)
    signs = np.sign(directions[np.arange(len(directions)), largest])
    components: DoubleArray = centered @ (directions * signs[:, None]).T
    return components
