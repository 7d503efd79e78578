"""Clusters embeddings by k-means, with as many clusters as classes."""

# C = clusters, D = embedding dim, N = images

from dataclasses import dataclass

import faiss
import numpy as np

from dml_core.config.evaluation import SearchDevice
from dml_core.evaluation.arrays import FloatArray, IntArray
from dml_core.evaluation.contingency import count_contingency, nmi_score, pair_f1_score
from dml_core.evaluation.faiss_device import check_search_device
from dml_core.evaluation.vectors import Frame, Metric
from dml_core.seeding import stream_seed


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
