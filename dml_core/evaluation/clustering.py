"""Compares k-means clusters with the classes, and measures the distances between classes."""

# C = clusters, M = cells (class, cluster) that hold at least one item, N = items, Y = classes
# C = clusters, D = embedding dim, N = images
# B = rows of a block, C = classes, D = embedding dim, M = images of the classes, N = images

from dataclasses import dataclass

import faiss
import numpy as np

from dml_core.config.trial import SearchDevice
from dml_core.evaluation.arrays import DoubleArray, FloatArray, Frame, IntArray, Metric
from dml_core.evaluation.neighbors import check_search_device, query_blocks
from dml_core.seeding import stream_seed


@dataclass(frozen=True)
class Contingency:
    """Sparse counts of items by class and cluster.

    It has at most one cell per item; a dense table of 11,318 classes and clusters takes a
    gigabyte.
    """

    class_sizes: IntArray
    """(Y,) items of each class."""
    cluster_sizes: IntArray
    """(C,) items of each cluster."""
    cell_clusters: IntArray
    """(M,) cluster of each cell, as an index into cluster_sizes."""
    cell_sizes: IntArray
    """(M,) items of each cell."""


def count_contingency(labels: IntArray, clusters: IntArray) -> Contingency:
    """Returns the contingency table of (N,) class ids and (N,) cluster ids, N at least 1."""
    _, label_codes, class_sizes = np.unique(labels, return_inverse=True, return_counts=True)
    _, cluster_codes, cluster_sizes = np.unique(clusters, return_inverse=True, return_counts=True)
    cells = label_codes * len(cluster_sizes) + cluster_codes
    cell_ids, cell_sizes = np.unique(cells, return_counts=True)
    return Contingency(class_sizes, cluster_sizes, cell_ids % len(cluster_sizes), cell_sizes)


def entropy_bits(sizes: IntArray) -> float:
    """Returns the entropy of groups with these sizes in bits; 0 for a single group."""
    shares = sizes / sizes.sum()
    return float(-(shares * np.log2(shares)).sum()) + 0.0


def conditional_entropy_by_cluster(contingency: Contingency) -> DoubleArray:
    """Returns the (C,) contribution of each cluster to H(Y|C), in bits.

    Example:
        A cluster with half of all items, 3/10 of them of one class and 7/10 of another, adds
        -1/2 (0.3 log2 0.3 + 0.7 log2 0.7) = 0.4406 bits.
    """
    sizes, clusters = contingency.cell_sizes, contingency.cell_clusters
    shares = sizes / contingency.cluster_sizes[clusters]
    bits = -(sizes / sizes.sum()) * np.log2(shares)
    added = np.bincount(clusters, weights=bits, minlength=len(contingency.cluster_sizes))
    return added.astype(np.float64, copy=False)


def nmi_score(contingency: Contingency) -> float:
    """Returns the normalised mutual information 2 I(Y;C) / (H(Y) + H(C)), from 0 to 1.

    One class in one cluster has entropies of 0 and is a perfect match: 1.
    """
    class_entropy = entropy_bits(contingency.class_sizes)
    total = class_entropy + entropy_bits(contingency.cluster_sizes)
    if total == 0:
        return 1.0
    information = class_entropy - float(conditional_entropy_by_cluster(contingency).sum())
    # Rounding may put the information slightly out of its bounds.
    return min(1.0, max(0.0, 2 * information / total))


def pair_f1_score(contingency: Contingency) -> float:
    """Returns F1 over pairs of items: same cluster is the prediction, same class the truth.

    If neither grouping has a pair, the score is 1.
    """
    same_both = _count_pairs(contingency.cell_sizes)
    same_either = _count_pairs(contingency.class_sizes) + _count_pairs(contingency.cluster_sizes)
    # Precision TP/(TP+FP) and recall TP/(TP+FN) give F1 = 2 TP / (2 TP + FP + FN).
    return 2 * same_both / same_either if same_either else 1.0


def _count_pairs(sizes: IntArray) -> int:
    return int((sizes * (sizes - 1) // 2).sum())


@dataclass(frozen=True)
class ClusteringScores:
    """Agreement of k-means clusters with the classes."""

    nmi: float
    """Normalised mutual information of classes and clusters."""
    pair_f1: float
    """F1 over pairs of images."""


def score_clustering(
    embeddings: FloatArray,
    labels: IntArray,
    *,
    metric: Metric,
    iterations: int,
    restarts: int,
    seed: int,
    device: SearchDevice = "cpu",
) -> ClusteringScores:
    """Returns NMI and pair F1 of k-means clusters of (N, D) embeddings against (N,) labels."""
    clusters = cluster_embeddings(
        embeddings,
        num_clusters=len(np.unique(labels)),
        metric=metric,
        iterations=iterations,
        restarts=restarts,
        seed=seed,
        device=device,
    )
    contingency = count_contingency(labels, clusters)
    return ClusteringScores(nmi=nmi_score(contingency), pair_f1=pair_f1_score(contingency))


def cluster_embeddings(
    embeddings: FloatArray,
    *,
    num_clusters: int,
    metric: Metric,
    iterations: int,
    restarts: int,
    seed: int,
    device: SearchDevice = "cpu",
) -> IntArray:
    """Returns the (N,) k-means cluster of each embedding, the best of several restarts.

    For cosine the embeddings are first scaled to unit length. The means are not (no spherical
    k-means), as in the published NMI values.

    Args:
        embeddings: (N, D), with N at least num_clusters.
        num_clusters: C.
        metric: distance that the embeddings were trained for.
        iterations: iterations of each run.
        restarts: runs; the one with the smallest sum of squared distances counts.
        seed: seed of the initial centroids.
        device: device of k-means.
    """
    check_search_device(device)
    vectors = Frame.around(embeddings, metric=metric).place(embeddings)
    kmeans = faiss.Kmeans(
        vectors.shape[1],
        num_clusters,
        niter=iterations,
        nredo=restarts,
        # faiss seeds are 32-bit integers, and each restart adds to the seed.
        seed=stream_seed(seed, "evaluation.kmeans") % 2**30,
        # By default faiss samples 256 images per cluster, and warns below 39.
        max_points_per_centroid=len(vectors),
        min_points_per_centroid=1,
        gpu=device == "gpu",
    )
    kmeans.train(vectors)
    _, clusters = kmeans.index.search(vectors, 1)
    return np.asarray(clusters[:, 0], dtype=np.int64)


def smallest_class_distances(
    embeddings: FloatArray,
    labels: IntArray,
    *,
    max_classes: int,
    metric: Metric,
    block_size: int = 1024,
) -> DoubleArray:
    """Returns the (C, C) smallest distances between images of two classes.

    For cosine they are distances between unit vectors. The diagonal is 0.

    Args:
        embeddings: (N, D) finite embeddings.
        labels: (N,) class ids.
        max_classes: C, the classes with the smallest ids; fewer if there are fewer.
        metric: distance that the embeddings were trained for.
        block_size: most images at once; bounds the memory.
    """
    classes = np.unique(labels)[:max_classes]
    chosen = np.flatnonzero(np.isin(labels, classes))
    # Sorted by class, so that each class is a range of columns.
    chosen = chosen[np.argsort(labels[chosen], kind="stable")]
    codes = np.searchsorted(classes, labels[chosen])
    frame = Frame.around(embeddings[chosen], metric=metric)
    vectors = frame.place(embeddings[chosen]).astype(np.float64)
    squared = _smallest_squared(vectors, codes, num_classes=len(classes), block_size=block_size)
    np.fill_diagonal(squared, 0.0)
    # Rounding may give slightly negative squares for equal vectors.
    distances: DoubleArray = np.sqrt(squared.clip(min=0.0)) * frame.scale
    return distances


def _smallest_squared(
    vectors: DoubleArray, codes: IntArray, *, num_classes: int, block_size: int
) -> DoubleArray:
    """Returns (C, C) smallest squared distances of (M, D) vectors sorted by (M,) class codes."""
    starts = np.searchsorted(codes, np.arange(num_classes))
    lengths = np.einsum("md,md->m", vectors, vectors)
    smallest = np.full((num_classes, num_classes), np.inf)
    for block in query_blocks(len(vectors), block_size=block_size, row_length=len(vectors)):
        squared = lengths[block, None] + lengths - 2 * vectors[block] @ vectors.T
        by_class = np.minimum.reduceat(squared, starts, axis=1)
        np.minimum.at(smallest, codes[block], by_class)
    return smallest
