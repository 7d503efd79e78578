"""Evaluation against pytorch-metric-learning, and against its faiss calls alone."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import faiss
import numpy as np
import torch
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from pytorch_metric_learning.utils.inference import FaissKMeans

from benchmarks.rows import Row, make_row
from benchmarks.settings import Settings
from benchmarks.timing import WALL, time_in_turns
from dml_core.config.trial import EvaluationConfig
from dml_core.evaluation.arrays import FloatArray, IntArray
from dml_core.evaluation.clustering import (
    cluster_embeddings,
    count_contingency,
    nmi_score,
    pair_f1_score,
)
from dml_core.evaluation.evaluate import evaluate_embeddings
from dml_core.seeding import stream_seed
from dml_core.training.determinism import limited_threads

GROUP = "evaluation"
DIM, ITERATIONS, THREADS = 512, 20, 2
RECALL_AT = (1, 10, 100, 1000)
TOLERANCE = 1e-5
"""Relative; neighbours whose distances differ by rounding may swap ranks."""


@dataclass(frozen=True)
class Size:
    """Number of images and classes."""

    num_images: int
    num_classes: int


SIZES = (Size(10_000, 100), Size(60_000, 600))
ROUNDS = 3
LARGE = 50_000
"""From this number of images on, a warm-up makes no measurable difference."""
MOST_SECONDS = 250.0
"""Time limit for all rounds of one size after the first."""
SMALL = (Size(1_200, 30),)


@dataclass(frozen=True)
class Case:
    """Embeddings of overlapping classes, with the competing evaluations."""

    size: Size

    @cached_property
    def labels(self) -> IntArray:
        """The class of each image."""
        return np.arange(self.size.num_images) % self.size.num_classes

    @cached_property
    def points(self) -> FloatArray:
        """Unit vectors around the centres of their classes."""
        chance = np.random.default_rng(0)
        centers = chance.standard_normal((self.size.num_classes, DIM), dtype=np.float32)
        noise = chance.standard_normal((self.size.num_images, DIM), dtype=np.float32)
        points = centers[self.labels] + 4 * noise
        unit: FloatArray = points / np.linalg.norm(points, axis=1, keepdims=True)
        return unit

    def evaluate(self) -> dict[str, float]:
        """Ours: R@K, R-precision, MAP@R, NMI, pair F1."""
        config = EvaluationConfig(recall_at=RECALL_AT, kmeans_iterations=ITERATIONS)
        return evaluate_embeddings(self.points, self.labels, config=config, metric="cosine")

    def calculate(self) -> dict[str, float]:
        """Theirs: precision at 1, R-precision, MAP@R, NMI; it has neither R@K nor pair F1."""
        names = ("precision_at_1", "r_precision", "mean_average_precision_at_r", "NMI")
        # The same k-means as ours, so that NMI can be compared.
        clustering = FaissKMeans(niter=ITERATIONS, **_kmeans_knobs(self.size.num_images))
        calculator = AccuracyCalculator(include=names, k=max(RECALL_AT), kmeans_func=clustering)
        numbers: dict[str, float] = calculator.get_accuracy(
            torch.from_numpy(self.points), torch.from_numpy(self.labels)
        )
        return numbers

    def search_and_cluster(self) -> None:
        """The faiss calls alone: the search in blocks, which is fastest, and k-means."""
        index = faiss.IndexFlatIP(DIM)
        index.add(self.points)
        for start in range(0, len(self.points), 4096):
            index.search(self.points[start : start + 4096], max(RECALL_AT) + 1)
        knobs = _kmeans_knobs(self.size.num_images)
        kmeans = faiss.Kmeans(DIM, self.size.num_classes, niter=ITERATIONS, **knobs)
        kmeans.train(self.points)
        kmeans.index.search(self.points, 1)

    @cached_property
    def clusters(self) -> IntArray:
        """The k-means cluster of each image."""
        return cluster_embeddings(
            self.points,
            num_clusters=self.size.num_classes,
            metric="cosine",
            iterations=2,
            restarts=1,
            seed=0,
        )

    def compute_clustering_scores(self) -> tuple[float, float]:
        """NMI and pair F1 from classes and clusters, with their contingency table."""
        contingency = count_contingency(self.labels, self.clusters)
        return nmi_score(contingency), pair_f1_score(contingency)


def run_evaluation(settings: Settings) -> list[Row]:
    """Returns three rows for each size."""
    rows: list[Row] = []
    with limited_threads(THREADS):
        for size in SMALL if settings.short else SIZES:
            rows += _measure(Case(size), settings)
    return rows


def _measure(case: Case, settings: Settings) -> list[Row]:
    results: dict[str, dict[str, float]] = {}

    def keep(name: str, work: Callable[[], dict[str, float]]) -> Callable[[], None]:
        return lambda: results.update({name: work()})

    runs: dict[str, Callable[[], Any]] = {
        "ours": keep("ours", case.evaluate),
        "theirs": keep("theirs", case.calculate),
        "faiss": case.search_and_cluster,
        "scores": case.compute_clustering_scores,
    }
    assert len(case.clusters) == len(case.points), "computed before the clock starts"
    if settings.short:
        runs["ours"](), runs["theirs"]()
    seconds = time_in_turns(
        runs,
        settings,
        rounds=ROUNDS,
        within_seconds=MOST_SECONDS,
        clock=WALL,
        warm_up=case.size.num_images < LARGE,
    )
    what = f"{case.size.num_images:,} x {DIM}"
    compared = make_row(
        GROUP,
        f"R@1..1000, MAP@R, R-precision, NMI, F1 of {what}",
        ours=seconds["ours"],
        theirs=seconds["theirs"],
        target=0.7,
        unit="s",
        against="AccuracyCalculator",
        difference=_difference(results["ours"], results["theirs"]),
        tolerance=TOLERANCE,
    )
    bare = make_row(
        GROUP,
        f"the same of {what}",
        ours=seconds["ours"],
        theirs=seconds["faiss"],
        target=1.15,
        unit="s",
        against="faiss search and k-means alone",
    )
    scores = make_row(
        GROUP,
        f"contingency, NMI and pair F1 of {what}",
        ours=seconds["scores"],
        theirs=seconds["ours"],
        target=0.01,
        unit="s",
        against="the whole evaluation",
    )
    return [compared, bare, scores]


def _difference(ours: dict[str, float], theirs: dict[str, float]) -> float:
    names = {
        "recall_at_1": "precision_at_1",
        "r_precision": "r_precision",
        "map_at_r": "mean_average_precision_at_r",
        "nmi": "NMI",
    }
    return max(abs(ours[own] - theirs[other]) / theirs[other] for own, other in names.items())


def _kmeans_knobs(num_images: int) -> dict[str, Any]:
    return {
        "seed": stream_seed(0, "evaluation.kmeans") % 2**30,
        "max_points_per_centroid": num_images,
        "min_points_per_centroid": 1,
    }
