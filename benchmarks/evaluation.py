"""Evaluation of 10,000 embeddings against the bare faiss work and pytorch-metric-learning."""

import faiss
import numpy as np
import torch
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

from benchmarks.timing import time_in_turns
from dml_core.config.evaluation import EvaluationConfig
from dml_core.evaluation.evaluate import evaluate_embeddings

IMAGES, DIM, CLASSES, ITERATIONS = 10_000, 512, 100, 20


def run_evaluation() -> list[dict[str, object]]:
    """Returns the milliseconds of ours, of the peer and of faiss alone, and the ratios to ours."""
    chance = np.random.default_rng(0)
    labels = np.arange(IMAGES) % CLASSES
    centers = chance.normal(size=(CLASSES, DIM))
    points = (centers[labels] + 3 * chance.normal(size=(IMAGES, DIM))).astype(np.float32)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    config = EvaluationConfig(recall_at=(1, 10, 100, 1000), kmeans_iterations=ITERATIONS)
    calculator = AccuracyCalculator(
        include=("precision_at_1", "r_precision", "mean_average_precision_at_r", "NMI"), k=1000
    )

    def bare_faiss() -> None:
        index = faiss.IndexFlatIP(DIM)
        index.add(points)
        for start in range(0, IMAGES, 1024):
            index.search(points[start : start + 1024], 1001)
        faiss.Kmeans(DIM, CLASSES, niter=ITERATIONS, max_points_per_centroid=IMAGES).train(points)

    tensors = torch.from_numpy(points), torch.from_numpy(labels)
    seconds = time_in_turns(
        {
            "ours": lambda: evaluate_embeddings(points, labels, config=config, metric="cosine"),
            "bare faiss": bare_faiss,
            "pytorch-metric-learning": lambda: calculator.get_accuracy(*tensors),
        },
        rounds=3,
    )
    return [
        {"what": name, "ms": 1000 * value, "ours_divided_by_it": seconds["ours"] / value}
        for name, value in seconds.items()
    ]
