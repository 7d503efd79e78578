"""Thresholds and false non-match rates at given false match rates."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dml_core.evaluation.evaluate import evaluate_embeddings
from dml_core.evaluation.operating_points import find_operating_points, name_points
from tests.references.operating_points import operating_point


def place_on_line(*positions):
    return np.array(positions, dtype=np.float32)[:, None]


def find(embeddings, labels, *rates, metric="euclidean", **options):
    found = find_operating_points(
        embeddings, np.asarray(labels), rates=rates, metric=metric, **options
    )
    return [(p.threshold, p.false_non_match_rate) for p in found.points.values()]


def test_worked_value():
    # Class 0 at 0, 1 and 4, class 1 at 3: distances between the classes 1, 2, 3; within 1, 3, 4.
    embeddings, labels = place_on_line(0, 1, 4, 3), [0, 0, 0, 1]
    # One of three may match: the threshold is the next one, 2. Of 1, 3 and 4 two are not below.
    assert find(embeddings, labels, 0.34) == [(2, pytest.approx(2 / 3))]
    # None may match: the threshold is the nearest, 1, and nothing is below it.
    assert find(embeddings, labels, 0.33) == [(1, 1)]
    assert find(embeddings, labels, 0.67) == [(3, pytest.approx(2 / 3))]


def test_cosine_thresholds_are_cosines():
    # Angles of 0, 30 and 90 degrees; between the classes 90 and 60 degrees, within 30.
    angles = np.radians([0, 30, 90])
    embeddings = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    ((threshold, missed),) = find(embeddings, [0, 0, 1], 0.1, metric="cosine")
    assert threshold == pytest.approx(0.5, abs=1e-6)
    assert missed == 0
    ((threshold, _),) = find(embeddings, [0, 0, 1], 0.5, metric="cosine")
    assert threshold == pytest.approx(0, abs=1e-6)


def test_ties_never_exceed_the_rate():
    # All four pairs between the classes have distance 1: either all match or none.
    embeddings, labels = place_on_line(0, 0, 1, 1), [0, 0, 1, 1]
    assert find(embeddings, labels, 0.5, 0.99) == [(1, 0), (1, 0)]
    # Everything at one point: no threshold separates, so every pair of one class is missed.
    assert find(place_on_line(7, 7, 7, 7), labels, 0.5) == [(0, 1)]


def test_a_rate_is_taken_as_written():
    # 29 of 100 pairs may match, although 0.29 * 100 is below 29 in floats: the next one is at 30.
    queries, gallery = place_on_line(0), place_on_line(*range(1, 101), 0.5)
    gallery_labels = np.append(np.arange(1, 101), 0)
    found = find_operating_points(
        queries, np.array([0]), gallery, gallery_labels, rates=[0.29], metric="euclidean"
    )
    assert found.num_impostor_pairs == 100
    assert found.points[0.29].threshold == 30


small_vectors = st.lists(
    st.tuples(st.integers(-3, 3), st.integers(-3, 3), st.integers(0, 2)), min_size=2, max_size=14
)


@settings(max_examples=60, deadline=None)
@given(
    rows=small_vectors, rate=st.sampled_from([0.001, 0.1, 0.25, 0.5, 0.9]), side=st.integers(1, 9)
)
@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_points_equal_the_slow_definition(metric, rows, rate, side):
    table = np.array(rows)
    embeddings, labels = table[:, :2].astype(np.float32), table[:, 2]
    found = find(embeddings, labels, rate, metric=metric, block_size=side)
    expected = operating_point(embeddings, labels, rate=rate, metric=metric)
    if expected is None:
        assert found == []
    else:
        assert found == [(pytest.approx(expected[0], abs=1e-6), expected[1])]


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_queries_are_paired_with_the_gallery_only(metric):
    random = np.random.default_rng(0)
    queries, gallery = random.normal(size=(15, 4)), random.normal(size=(25, 4))
    labels, gallery_labels = np.arange(15) % 4, np.arange(25) % 5
    found = find_operating_points(
        queries.astype(np.float32), labels, gallery.astype(np.float32), gallery_labels,
        rates=[0.01, 0.2], metric=metric, block_size=4,
    )  # fmt: skip
    for rate, point in found.points.items():
        threshold, missed = operating_point(
            queries.astype(np.float32), labels, gallery.astype(np.float32), gallery_labels,
            rate=rate, metric=metric,
        )  # fmt: skip
        assert point.threshold == pytest.approx(threshold, abs=1e-6)
        assert point.false_non_match_rate == missed


def test_blocks_and_order_never_change_a_number():
    random = np.random.default_rng(1)
    embeddings = random.normal(size=(90, 8)).astype(np.float32)
    # Copies and mirrored copies give ties.
    embeddings = np.concatenate([embeddings, embeddings, -embeddings])
    labels = random.integers(0, 12, len(embeddings))
    rates = (0.001, 0.03, 0.4)
    order = random.permutation(len(embeddings))
    for metric in ("cosine", "euclidean"):
        whole = find(embeddings, labels, *rates, metric=metric)
        assert find(embeddings, labels, *rates, metric=metric, block_size=7) == whole
        moved = find(embeddings[order], labels[order], *rates, metric=metric, block_size=32)
        assert [missed for _, missed in moved] == [missed for _, missed in whole]
        assert [t for t, _ in moved] == pytest.approx([t for t, _ in whole], abs=1e-6)


def test_one_class_has_no_operating_points():
    embeddings = np.random.default_rng(0).normal(size=(6, 3))
    numbers = evaluate_embeddings(embeddings, np.zeros(6, dtype=int), match_rates=(0.1,))
    assert not any("fmr" in name for name in numbers)


def test_an_evaluation_names_the_rates_without_exponents():
    assert name_points([0.1, 0.00001, 0.1]) == [
        "fnmr_at_fmr_0.1", "fnmr_at_fmr_0.00001",
        "threshold_at_fmr_0.1", "threshold_at_fmr_0.00001",
    ]  # fmt: skip
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(5), 4)
    embeddings = 3 * np.eye(5)[labels] + 0.1 * random.normal(size=(20, 5))
    numbers = evaluate_embeddings(embeddings, labels, match_rates=(0.1, 0.00001))
    assert numbers["fnmr_at_fmr_0.00001"] == 0
    assert 0 < numbers["threshold_at_fmr_0.00001"] < 1


@pytest.mark.parametrize("rate", [0, 1, -0.1])
def test_a_rate_outside_0_and_1_is_an_error(rate):
    with pytest.raises(ValueError, match=f"match_rates.*{rate}"):
        evaluate_embeddings(np.eye(4), np.array([0, 0, 1, 1]), match_rates=(rate,))


def test_the_distances_are_not_stored():
    random = np.random.default_rng(0)
    embeddings = random.standard_normal((5000, 8), dtype=np.float32)
    labels = random.integers(0, 50, 5000)
    tracemalloc.start()
    (point,) = find(embeddings, labels, 0.01, metric="cosine", block_size=512)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.9 < point[1] < 1
    # The distances of 12.5 million pairs would take 50 MB as float32.
    assert peak < 15e6
