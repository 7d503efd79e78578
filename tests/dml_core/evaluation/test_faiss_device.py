"""Where faiss searches; there is no card here, so that the CPU's index stands in for one."""

import faiss
import numpy as np
import pytest

from dml_core.config.trial import EvaluationConfig
from dml_core.evaluation.evaluate import evaluate_embeddings
from dml_core.evaluation.neighbors import MAX_NEIGHBORS, PlacedIndex

EMBEDDINGS = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
LABELS = np.arange(40) // 4


@pytest.fixture
def cards(monkeypatch):
    """Says what was searched on cards and which k-means were found there."""
    said = {"searches": [], "kmeans": []}

    class OnCards:
        def __init__(self, index):
            self.index = index

        def search(self, queries, count):
            said["searches"].append(count)
            return self.index.search(queries, count)

    kmeans = faiss.Kmeans

    def make_kmeans(*arguments, gpu, **options):
        said["kmeans"].append(gpu)
        return kmeans(*arguments, **options)

    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1)
    monkeypatch.setattr(faiss, "index_cpu_to_all_gpus", OnCards)
    monkeypatch.setattr(faiss, "Kmeans", make_kmeans)
    return said


def evaluate(device):
    config = EvaluationConfig(search_device=device)
    return evaluate_embeddings(EMBEDDINGS, LABELS, config=config, metric="cosine")


def test_an_evaluation_on_cards_searches_and_clusters_there(cards):
    found = evaluate("gpu")
    assert cards["searches"]
    assert cards["kmeans"] == [True]
    assert found == evaluate("cpu")
    assert cards["kmeans"] == [True, False]


def test_what_cards_cannot_search_stays_on_the_cpu(cards):
    vectors = np.ones((MAX_NEIGHBORS + 2, 2), np.float32)
    index = faiss.IndexFlatL2(2)
    index.add(vectors)
    placed = PlacedIndex(index, "gpu")
    for count in (MAX_NEIGHBORS, MAX_NEIGHBORS + 1):
        assert placed.search(vectors[:1], count)[1].shape == (1, count)
    assert cards["searches"] == [MAX_NEIGHBORS]


def test_the_default_is_the_cpu(cards):
    evaluate(EvaluationConfig().search_device)
    assert cards["searches"] == []


def test_without_a_card_it_says_what_to_do():
    with pytest.raises(ValueError, match=r"search_device=gpu needs a GPU .* sees none"):
        evaluate("gpu")
