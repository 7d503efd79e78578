"""A divided evaluation has the same bits as one that is not."""

import numpy as np
import pytest

from dml_core.config.trial import EvaluationConfig
from dml_core.evaluation import neighbors
from dml_core.evaluation.evaluate import evaluate_embeddings
from dml_core.evaluation.spreading import Spread, run_here, split_rows

NUM_IMAGES = 90
EVERYTHING = {"binary": True, "clustering": True, "synthetic_points": 2, "block_size": 8}


@pytest.mark.parametrize(
    ("num_rows", "part_size", "multiple", "expected"),
    [
        (10, 4, 4, [(0, 4), (4, 8), (8, 10)]),
        (10, 5, 4, [(0, 8), (8, 10)]),
        (3, 100, 64, [(0, 3)]),
        (8, 1, 4, [(0, 4), (4, 8)]),
    ],
)
def test_parts_begin_at_whole_multiples(num_rows, part_size, multiple, expected):
    found = split_rows(num_rows, part_size=part_size, multiple=multiple)
    assert [(rows.start, rows.stop) for rows in found] == expected


class Counted:
    """Runs parts here, and counts them."""

    def __init__(self):
        self.parts = 0

    def __call__(self, function, shared, parts):
        self.parts += len(parts)
        return run_here(function, shared, parts)


def draw(has_ties):
    stream = np.random.default_rng(3)
    if has_ties:
        return stream.integers(-1, 2, size=(NUM_IMAGES, 4)).astype(np.float32)
    return stream.standard_normal((NUM_IMAGES, 12), dtype=np.float32)


@pytest.mark.parametrize("has_ties", [False, True])
@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize(
    ("knobs", "more"),
    [
        ({}, {}),
        ({"compare_once_from": 1}, {}),
        # The first hit of some queries is found in a second, deeper search.
        ({"recall_at": (1, 80)}, {}),
        ({}, {"roles": np.repeat(["query", "gallery"], NUM_IMAGES // 2)}),
        ({}, {"continuous": np.linspace(0, 1, NUM_IMAGES)[:, None]}),
    ],
    ids=["plain", "compared once", "deep", "query and gallery", "continuous"],
)
def test_every_metric_is_the_same(monkeypatch, metric, knobs, more, has_ties):
    monkeypatch.setattr("dml_core.evaluation.among_all.BLOCK", 16)
    monkeypatch.setattr("dml_core.evaluation.retrieval.SHALLOW", 20)
    run, config = Counted(), EvaluationConfig(**EVERYTHING, **knobs)
    given = {"metric": metric, "config": config, **more}
    vectors, labels = draw(has_ties), np.arange(NUM_IMAGES) % 9
    whole = evaluate_embeddings(vectors, labels, **given)
    divided = evaluate_embeddings(vectors, labels, spread=Spread(run, 20, lanes=5), **given)
    assert divided == whole
    # Three computations are one part each; the search has several.
    assert run.parts > 5


def test_parts_of_many_neighbours_hold_fewer_queries(monkeypatch):
    monkeypatch.setattr(neighbors, "MAX_PART_ENTRIES", 8 * 10)
    run, config = Counted(), EvaluationConfig(recall_at=(1,), clustering=False, block_size=8)
    given = {"metric": "cosine", "config": config}
    evaluate_embeddings(draw(False), np.arange(NUM_IMAGES) % 9, spread=Spread(run, 80), **given)
    # 90 queries in blocks of at most 8, each a part, since 8 times 10 neighbours fill it.
    assert run.parts == 12


def test_few_images_are_not_divided():
    run = Counted()
    config = EvaluationConfig(clustering=False)
    labels = np.arange(NUM_IMAGES) % 9
    spread = Spread(run, NUM_IMAGES)
    evaluate_embeddings(draw(False), labels, metric="cosine", config=config, spread=spread)
    assert run.parts == 0
