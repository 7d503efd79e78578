"""Which numbers an evaluation gives."""

from typing import Annotated, Literal

from pydantic import Field

from dml_core.config.section import Section

Rank = Annotated[int, Field(ge=1, le=1_000_000)]
Share = Annotated[float, Field(gt=0, lt=1)]
SearchDevice = Literal["cpu", "gpu"]


class EvaluationConfig(Section):
    """Retrieval, clustering, continuous labels, occlusion."""

    recall_at: tuple[Rank, ...] = Field(default=(1, 2, 4, 8), min_length=1)
    """The K of R@K."""
    clustering: bool = True
    """Compute NMI and pair F1 over k-means with as many clusters as classes."""
    kmeans_iterations: int = Field(default=50, ge=1, le=10_000)
    """Iterations of each k-means run."""
    kmeans_restarts: int = Field(default=1, ge=1, le=100)
    """k-means runs, of which the best by its own objective counts."""
    binary: bool = False
    """Also evaluate the embeddings cut to one bit a dimension (value > 0), by Hamming distance."""
    label_at: tuple[Rank, ...] = Field(default=(1, 5, 10), min_length=1)
    """The K of the mean label distance, where there are continuous labels."""
    ndcg_at: tuple[Rank, ...] = Field(default=(10, 50, 100), min_length=1)
    """The K of nDCG, where there are continuous labels; the first is `ndcg` for selection."""
    occlusion: tuple[Share, ...] = ()
    """Sides of the black square laid over each image, as shares of its side; none by default."""
    synthetic_points: int = Field(default=0, ge=0, le=256)
    """Points between the two images of each pair of a class that are searched as queries; 0 leaves
    `synthetic_recall_at_K` out."""
    class_distances: int = Field(default=0, ge=0, le=1000)
    """Validation classes, from the first, whose smallest distances to each other are recorded
    after each epoch; 0 records none."""
    block_size: int = Field(default=1024, ge=1, le=1_000_000)
    """Queries searched at once; bounds the memory, never changes a number."""
    compare_once_from: int = Field(default=16_384, ge=0)
    """Images from which on each pair is compared once for both of it, where images are searched
    among themselves by cosine on the CPU: half the products. 0 never does. Numbers may then differ
    where two distances differ by rounding only."""
    search_device: SearchDevice = "cpu"
    """Where neighbours are searched and clusters found; gpu needs a faiss that was built for it.
    Numbers may then differ where two distances differ by rounding only."""
    batch_size: int = Field(default=64, ge=1, le=100_000)
    """Images embedded at once; on a CPU small batches stay in the cache and are faster."""
