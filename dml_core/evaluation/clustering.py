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
    """How many items of each class lie in each cluster; empty cells are not stored.

    At most one cell an item is kept, where a full table of 11,318 classes and as many clusters
    takes a gigabyte.
    """

    class_sizes: IntArray
    """(Y,) items of each class."""
    cluster_sizes: IntArray
    """(C,) items of each cluster."""
    cell_clusters: IntArray
    """(M,) the cluster of each cell, as an index into cluster_sizes."""
    cell_sizes: IntArray
    """(M,) items of each cell."""


def count_contingency(labels: IntArray, clusters: IntArray) -> Contingency:
    """Returns the contingency of (N,) class ids and (N,) cluster ids, N at least 1."""
    _, label_codes, class_sizes = np.unique(labels, return_inverse=True, return_counts=True)
    _, cluster_codes, cluster_sizes = np.unique(clusters, return_inverse=True, return_counts=True)
    cells = label_codes * len(cluster_sizes) + cluster_codes
    cell_ids, cell_sizes = np.unique(cells, return_counts=True)
    return Contingency(class_sizes, cluster_sizes, cell_ids % len(cluster_sizes), cell_sizes)


def entropy_bits(sizes: IntArray) -> float:
    """Returns the entropy in bits of groups with these sizes; 0 for a single group."""
    shares = sizes / sizes.sum()
    return float(-(shares * np.log2(shares)).sum()) + 0.0


def conditional_entropy_by_cluster(contingency: Contingency) -> DoubleArray:
    """Returns (C,) what each cluster adds to H(Y|C), in bits; the sum is H(Y|C).

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

    One class in one cluster, where both entropies are 0, is a perfect match: 1.
    """
    class_entropy = entropy_bits(contingency.class_sizes)
    total = class_entropy + entropy_bits(contingency.cluster_sizes)
    if total == 0:
        return 1.0
    information = class_entropy - float(conditional_entropy_by_cluster(contingency).sum())
    # Rounding may leave the information a hair outside of its bounds.
    return min(1.0, max(0.0, 2 * information / total))


def pair_f1_score(contingency: Contingency) -> float:
    """Returns F1 over pairs of items: same cluster is the prediction, same class the truth.

    Where neither grouping has a pair there is nothing to get wrong: 1.
    """
    same_both = _count_pairs(contingency.cell_sizes)
    same_either = _count_pairs(contingency.class_sizes) + _count_pairs(contingency.cluster_sizes)
    # Precision TP/(TP+FP) and recall TP/(TP+FN) give F1 = 2 TP / (2 TP + FP + FN).
    return 2 * same_both / same_either if same_either else 1.0


def _count_pairs(sizes: IntArray) -> int:
    return int((sizes * (sizes - 1) // 2).sum())


@dataclass(frozen=True)
class ClusteringScores:
    """How well k-means finds the classes."""

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
    """Returns NMI and pair F1 of a k-means clustering of (N, D) embeddings against (N,) labels."""
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
    """Returns (N,) the k-means cluster of each embedding, the best of several restarts.

    With cosine the embeddings are first brought to unit length; the means inside the sphere are
    left there (no spherical k-means), as in the published NMI values.

    Args:
        embeddings: (N, D), with N at least num_clusters.
        num_clusters: C.
        metric: which distance the embeddings were learned for.
        iterations: of each run.
        restarts: runs, of which the one with the smallest sum of squared distances counts.
        seed: of the images that the runs start from.
        device: where the clusters are found.
    """
    check_search_device(device)
    vectors = Frame.around(embeddings, metric=metric).place(embeddings)
    kmeans = faiss.Kmeans(
        vectors.shape[1],
        num_clusters,
        niter=iterations,
        nredo=restarts,
        # Its seeds are 32-bit integers, to which it adds some with each restart.
        seed=stream_seed(seed, "evaluation.kmeans") % 2**30,
        # faiss would look at 256 images a cluster only, and warn below 39.
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
    """Returns the (C, C) distances of the nearest two images of each two classes.

    Under cosine they are distances on the unit sphere. The diagonal is 0.

    Args:
        embeddings: (N, D) finite embeddings.
        labels: (N,) class ids.
        max_classes: C, the classes with the smallest ids; fewer where there are fewer.
        metric: how embeddings are compared.
        block_size: most images at once; bounds the memory.
    """
    classes = np.unique(labels)[:max_classes]
    chosen = np.flatnonzero(np.isin(labels, classes))
    # Sorted by class, so that each class is a run of columns.
    chosen = chosen[np.argsort(labels[chosen], kind="stable")]
    codes = np.searchsorted(classes, labels[chosen])
    frame = Frame.around(embeddings[chosen], metric=metric)
    vectors = frame.place(embeddings[chosen]).astype(np.float64)
    squared = _smallest_squared(vectors, codes, num_classes=len(classes), block_size=block_size)
    np.fill_diagonal(squared, 0.0)
    # Rounding may leave a negative trace between equal vectors.
    distances: DoubleArray = np.sqrt(squared.clip(min=0.0)) * frame.scale
    return distances


def _smallest_squared(
    vectors: DoubleArray, codes: IntArray, *, num_classes: int, block_size: int
) -> DoubleArray:
    """(C, C) smallest squared distances, from (M, D) vectors sorted by their (M,) classes."""
    starts = np.searchsorted(codes, np.arange(num_classes))
    lengths = np.einsum("md,md->m", vectors, vectors)
    smallest = np.full((num_classes, num_classes), np.inf)
    for block in query_blocks(len(vectors), block_size=block_size, row_length=len(vectors)):
        squared = lengths[block, None] + lengths - 2 * vectors[block] @ vectors.T
        by_class = np.minimum.reduceat(squared, starts, axis=1)
        np.minimum.at(smallest, codes[block], by_class)
    return smallest
