import numpy as np
import pytest

from dml_core.analysis.factors import pool_factors, read_coordinates
from dml_core.analysis.verdicts import compare_arms
from tests.references.written_studies import read_study


def make_grid(effect=0.05, noise=0.01, seed=0):
    """Three losses by two dimensions; the longer embedding scores `effect` more."""
    random = np.random.default_rng(seed)
    scores, coordinates = {}, {}
    for place, loss in enumerate(("a", "b", "c")):
        for dim in (32, 128):
            mean = 0.5 + 0.1 * place + (effect if dim == 128 else 0.0)
            arm = f"{loss}-{dim}"
            scores[arm] = dict(enumerate(random.normal(mean, noise, 4)))
            coordinates[arm] = {"loss.name": loss, "model.embedding_dim": dim}
    return scores, coordinates


def test_a_factor_is_pooled_over_the_pairs_that_differ_in_it_alone():
    scores, coordinates = make_grid()
    (dim,) = [e for e in pool_factors(scores, coordinates) if e.key == "model.embedding_dim"]
    assert (dim.value, dim.best, dim.num_pairs, dim.verdict) == (32, 128, 3, "worse")
    means = {arm: np.mean(list(by_seed.values())) for arm, by_seed in scores.items()}
    by_hand = np.mean([means[f"{loss}-32"] - means[f"{loss}-128"] for loss in "abc"])
    assert dim.difference == pytest.approx(by_hand)
    low, high = dim.interval
    assert low < dim.difference < high < 0


def test_every_other_value_is_compared_with_the_best():
    effects = pool_factors(*make_grid())
    assert [(e.value, e.best) for e in effects if e.key == "loss.name"] == [("a", "c"), ("b", "c")]
    effects = pool_factors(*make_grid(), higher_is_better=False)
    assert [(e.value, e.best, e.verdict) for e in effects if e.key == "loss.name"] == [
        ("b", "a", "worse"),
        ("c", "a", "worse"),
    ]


def test_pooling_finds_what_no_pair_shows():
    scores, coordinates = make_grid(effect=0.02, noise=0.015, seed=4)
    pairs = compare_arms(scores)
    assert all(pairs[f"{loss}-32", f"{loss}-128"].verdict == "cannot tell" for loss in "abc")
    (dim,) = [e for e in pool_factors(scores, coordinates) if e.key == "model.embedding_dim"]
    assert dim.verdict == "worse"


def test_an_effect_too_small_to_matter_is_no_difference():
    scores, coordinates = make_grid(effect=0.001, noise=0.003)
    (dim,) = [e for e in pool_factors(scores, coordinates) if e.key == "model.embedding_dim"]
    assert dim.verdict == "no difference"


def test_a_factor_of_one_pair_is_left_to_the_pair():
    scores, coordinates = make_grid()
    kept = {arm: coordinates[arm] for arm in ("a-32", "a-128", "b-32")}
    assert pool_factors(scores, kept) == []
    assert pool_factors({arm: {} for arm in scores}, coordinates) == []


def test_the_coordinates_are_the_values_of_the_keys_that_an_arm_sets(tmp_path):
    text = (
        "question: q\narms:\n  a: {loss.name: triplet}\n"
        "  b: {loss.name: triplet, model.embedding_dim: 32}\nfixed: {model.embedding_dim: 64}\n"
    )
    assert read_coordinates(read_study(tmp_path, text)) == {
        "a": {"loss.name": "triplet", "model.embedding_dim": 64},
        "b": {"loss.name": "triplet", "model.embedding_dim": 32},
    }


def test_a_list_is_one_value_of_its_key(tmp_path):
    text = """
question: q
arms:
  plain: {model.embedding_dim: 32}
  short: {model.embedding_dim: 32, loss.matryoshka: [8, 32]}
  long: {model.embedding_dim: 64}
  both: {model.embedding_dim: 64, loss.matryoshka: [8, 64]}
"""
    coordinates = read_coordinates(read_study(tmp_path, text))
    assert coordinates["short"]["loss.matryoshka"] == (8, 32)
    scores = {arm: {0: 0.5, 1: 0.6} for arm in coordinates}
    assert {effect.key for effect in pool_factors(scores, coordinates)} <= {"model.embedding_dim"}
