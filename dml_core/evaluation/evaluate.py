"""Embeds images and computes every configured metric of embeddings."""

# D = embedding dim, L = label columns, N = images

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dml_core.config.arguments import read_arguments, takes_fields_of
from dml_core.config.trial import EvaluationConfig
from dml_core.data.inputs import Inputs, plain_batches
from dml_core.evaluation.arrays import (
    DoubleArray,
    FloatArray,
    IntArray,
    Metric,
    QueryAndGallery,
    check_continuous,
    check_embeddings,
    check_labels,
    split_by_role,
)
from dml_core.evaluation.clustering import score_clustering
from dml_core.evaluation.continuous import score_continuous
from dml_core.evaluation.neighbors import BinarySearch, NeighborSearch
from dml_core.evaluation.operating_points import find_operating_points
from dml_core.evaluation.retrieval import count_relevant, score_retrieval, score_synthetic
from dml_core.evaluation.spreading import Spread, call_part, runner_of


@takes_fields_of(EvaluationConfig)
def evaluate_embeddings(
    embeddings: npt.ArrayLike | Tensor,
    labels: npt.ArrayLike | Tensor,
    *,
    gallery: tuple[npt.ArrayLike | Tensor, npt.ArrayLike | Tensor] | None = None,
    metric: Metric = "cosine",
    roles: npt.ArrayLike | None = None,
    continuous: npt.ArrayLike | Tensor | None = None,
    seed: int = 0,
    config: EvaluationConfig | None = None,
    spread: Spread | None = None,
    **options: Any,
) -> dict[str, float]:
    """Returns every configured metric by name, in the order of the report.

    By class: `recall_at_K`, `r_precision`, `map_at_r`; if configured `nmi` and `pair_f1` (over all
    images), the retrieval scores of binarised embeddings with the prefix `binary_`,
    `fnmr_at_fmr_F` and `threshold_at_fmr_F` for each false match rate F (over pairs; absent with
    one class), and `synthetic_recall_at_K` (over all images). With continuous labels:
    `mean_label_distance_at_K`, `ndcg_at_K`. With truncate_at, the retrieval scores and those by
    continuous label of the first N dimensions, with the prefix `dimN_`. Last the counts
    `num_queries` and `num_queries_left_out` of the retrieval by class.
    Metrics by class are absent if no query shares its class with a gallery item, as in data with
    continuous labels only. The inputs are not modified.

    Args:
        embeddings: (N, D) array or tensor, finite, compared in float32.
        labels: (N,) class ids.
        gallery: embeddings and labels to search in; all images above are then queries.
        metric: distance that the embeddings were trained for.
        roles: (N,) with `query` and `gallery`, queries are searched in the gallery only;
            otherwise every image is searched among all others.
        continuous: (N, L) finite labels.
        seed: seed of k-means.
        config: the metrics to compute; None takes the defaults.
        spread: divides the work; the numbers are the same, bit for bit.
        options: fields of EvaluationConfig that differ from config, such as `recall_at`.

    Raises:
        ValueError: when embeddings or labels cannot be ranked, or no query has a relevant item.
    """
    given = {**dict(config or ()), **options}
    found = read_arguments(evaluate_embeddings, EvaluationConfig, given=given)
    chosen: EvaluationConfig = found[EvaluationConfig]
    if gallery is not None:
        if roles is not None or continuous is not None:
            raise ValueError(
                "evaluation: gallery must be given without roles and continuous labels, which "
                "describe one table of images. Join both tables and give roles."
            )
        embeddings, labels, roles = _join_gallery(embeddings, labels, *gallery)
    vectors = check_embeddings(_as_array(embeddings))
    class_ids = check_labels(_as_array(labels), num_rows=len(vectors))
    sets = split_by_role(None if roles is None else np.asarray(roles), num_rows=len(vectors))
    num_relevant = count_relevant(*sets.split(class_ids))
    num_queries = int(np.count_nonzero(num_relevant))
    if num_queries == 0 and continuous is None:
        raise _no_relevant_items(len(num_relevant))
    _check_lengths(chosen.truncate_at, vectors)
    numbers: dict[str, float] = {}
    if num_queries:
        numbers |= _retrieval_numbers(
            vectors, class_ids, sets, config=chosen, metric=metric, spread=spread
        )
        others = _list_others(sets, config=chosen, metric=metric, seed=seed)
        for found_numbers in runner_of(spread)(call_part, (vectors, class_ids), others):
            numbers |= found_numbers
    if continuous is not None:
        values = check_continuous(_as_array(continuous), num_rows=len(vectors))
        numbers |= _continuous_numbers(
            vectors, values, sets, config=chosen, metric=metric, spread=spread
        )
    for length in chosen.truncate_at:
        prefix = np.ascontiguousarray(vectors[:, :length])
        cut: dict[str, float] = {}
        if num_queries:
            cut |= _retrieval_numbers(
                prefix, class_ids, sets, config=chosen, metric=metric, spread=spread
            )
        if continuous is not None:
            cut |= _continuous_numbers(
                prefix, values, sets, config=chosen, metric=metric, spread=spread
            )
        numbers |= {f"dim{length}_{name}": value for name, value in cut.items()}
    numbers["num_queries"] = float(num_queries)
    numbers["num_queries_left_out"] = float(len(num_relevant) - num_queries)
    return numbers


def _as_array(values: npt.ArrayLike | Tensor) -> npt.NDArray[Any]:
    if not isinstance(values, Tensor):
        return np.asarray(values)
    plain = values.detach().cpu()
    # Numpy has no bfloat16.
    return (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()


def _join_gallery(
    queries: npt.ArrayLike | Tensor,
    query_labels: npt.ArrayLike | Tensor,
    gallery: npt.ArrayLike | Tensor,
    gallery_labels: npt.ArrayLike | Tensor,
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[np.str_]]:
    """Returns queries and gallery as one table with roles."""
    above, below = _as_array(queries), _as_array(gallery)
    if above.ndim != 2 or above.shape[1:] != below.shape[1:]:
        raise ValueError(
            "evaluation: queries and gallery must be tables with the same number of columns. "
            f"Got shapes {above.shape} and {below.shape}."
        )
    labels = np.concatenate([_as_array(query_labels), _as_array(gallery_labels)])
    roles = np.repeat(["query", "gallery"], [len(above), len(below)])
    return np.concatenate([above, below]), labels, roles


def _check_lengths(lengths: tuple[int, ...], embeddings: FloatArray) -> None:
    if too_long := [length for length in lengths if length > embeddings.shape[1]]:
        raise ValueError(
            f"evaluation.truncate_at must hold lengths up to {embeddings.shape[1]}, the length of "
            f"the embeddings. Got {too_long[0]}."
        )


def _no_relevant_items(num_queries: int) -> ValueError:
    return ValueError(
        "evaluation: at least one query must share its class with a gallery item, or there is "
        f"nothing to find. Got {num_queries} queries that do not. "
        "Evaluate classes with two or more images, or give continuous labels."
    )


def _neighbor_search(
    embeddings: FloatArray,
    sets: QueryAndGallery,
    *,
    config: EvaluationConfig,
    metric: Metric,
    spread: Spread | None,
) -> NeighborSearch:
    queries, gallery = sets.split(embeddings)
    return NeighborSearch(
        queries,
        gallery,
        metric=metric,
        block_size=config.block_size,
        device=config.search_device,
        compare_once_from=config.compare_once_from,
        spread=spread,
    )


def _list_others(
    sets: QueryAndGallery, *, config: EvaluationConfig, metric: Metric, seed: int
) -> list[Callable[[FloatArray, IntArray], dict[str, float]]]:
    """Returns the configured computations beside the retrieval; each is one part."""
    listed = {
        "clustering": partial(_clustering_numbers, config=config, metric=metric, seed=seed),
        "binary": partial(_binary_numbers, sets=sets, config=config),
        "match_rates": partial(_match_numbers, sets=sets, config=config, metric=metric),
        "synthetic_points": partial(_synthetic_numbers, config=config, metric=metric),
    }
    return [compute for key, compute in listed.items() if getattr(config, key)]


def _retrieval_numbers(
    embeddings: FloatArray,
    labels: IntArray,
    sets: QueryAndGallery,
    *,
    config: EvaluationConfig,
    metric: Metric,
    spread: Spread | None = None,
) -> dict[str, float]:
    find = _neighbor_search(embeddings, sets, config=config, metric=metric, spread=spread)
    return score_retrieval(find, *sets.split(labels), recall_at=config.recall_at).named()


def _binary_numbers(
    embeddings: FloatArray, labels: IntArray, sets: QueryAndGallery, *, config: EvaluationConfig
) -> dict[str, float]:
    queries, gallery = sets.split(embeddings)
    find = BinarySearch(queries, gallery, block_size=config.block_size)
    scores = score_retrieval(find, *sets.split(labels), recall_at=config.recall_at)
    return scores.named("binary_")


def _match_numbers(
    embeddings: FloatArray,
    labels: IntArray,
    sets: QueryAndGallery,
    *,
    config: EvaluationConfig,
    metric: Metric,
) -> dict[str, float]:
    (queries, gallery), (query_labels, gallery_labels) = sets.split(embeddings), sets.split(labels)
    found = find_operating_points(
        queries,
        query_labels,
        gallery,
        gallery_labels,
        rates=config.match_rates,
        metric=metric,
        block_size=config.block_size,
    )
    return found.named()


def _clustering_numbers(
    embeddings: FloatArray,
    labels: IntArray,
    *,
    config: EvaluationConfig,
    metric: Metric,
    seed: int,
) -> dict[str, float]:
    scores = score_clustering(
        embeddings,
        labels,
        metric=metric,
        iterations=config.kmeans_iterations,
        restarts=config.kmeans_restarts,
        seed=seed,
        device=config.search_device,
    )
    return {"nmi": scores.nmi, "pair_f1": scores.pair_f1}


def _synthetic_numbers(
    embeddings: FloatArray, labels: IntArray, *, config: EvaluationConfig, metric: Metric
) -> dict[str, float]:
    recalls = score_synthetic(
        embeddings,
        labels,
        points=config.synthetic_points,
        metric=metric,
        recall_at=config.recall_at,
        block_size=config.block_size,
    )
    return {f"synthetic_recall_at_{k}": recall for k, recall in recalls.items()}


def _continuous_numbers(
    embeddings: FloatArray,
    continuous: DoubleArray,
    sets: QueryAndGallery,
    *,
    config: EvaluationConfig,
    metric: Metric,
    spread: Spread | None = None,
) -> dict[str, float]:
    find = _neighbor_search(embeddings, sets, config=config, metric=metric, spread=spread)
    scores = score_continuous(
        find,
        *sets.split(continuous),
        label_at=config.label_at,
        ndcg_at=config.ndcg_at,
        block_size=config.block_size,
    )
    return scores.named()


def embed(
    network: Callable[[Tensor], Tensor],
    inputs: Inputs,
    *,
    batch_size: int,
    device: torch.device,
    workers: int = 0,
    use_bfloat16: bool = False,
) -> np.ndarray:
    """Returns the (N, D) float32 embeddings of all images, in their order.

    Args:
        network: maps a batch of inputs to embeddings; the caller has set evaluation mode.
        inputs: the images.
        batch_size: images per forward pass.
        device: device of the network.
        workers: threads that prefetch inputs.
        use_bfloat16: whether to run the network under autocast.
    """
    parts = []
    with torch.inference_mode():
        for _, batch in plain_batches(inputs, batch_size=batch_size, workers=workers):
            moved = batch.to(device, non_blocking=True)
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=use_bfloat16):
                parts.append(network(moved).float().cpu().numpy())
    return np.concatenate(parts)


def measure_spread(embeddings: np.ndarray) -> float:
    """Returns the spread of embeddings relative to their length; 0 if all are equal."""
    if not np.isfinite(embeddings).all():
        return float("nan")
    center = embeddings.mean(axis=0, dtype=np.float64)
    deviation = np.sqrt(((embeddings - center) ** 2).sum(axis=1).mean())
    length = np.sqrt((embeddings.astype(np.float64) ** 2).sum(axis=1).mean())
    return float(deviation / length) if length > 0 else 0.0
