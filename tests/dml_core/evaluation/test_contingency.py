"""NMI and pair F1 agree with worked values, plain loops and scikit-learn."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import normalized_mutual_info_score
from sklearn.metrics.cluster import pair_confusion_matrix

from dml_core.evaluation.clustering import (
    conditional_entropy_by_cluster,
    count_contingency,
    entropy_bits,
    nmi_score,
    pair_f1_score,
)
from tests.references.clustering import nmi, pair_f1

groupings = st.integers(1, 25).flatmap(
    lambda n: st.tuples(
        st.lists(st.sampled_from([0, 1, 2, 2**24, 2**24 + 1, -7]), min_size=n, max_size=n),
        st.lists(st.integers(0, 6), min_size=n, max_size=n),
    )
)


def count(labels, clusters):
    return count_contingency(np.array(labels, dtype=np.int64), np.array(clusters, dtype=np.int64))


def test_one_cluster_adds_its_share_of_the_conditional_entropy():
    # Cluster 1 has 10 of 20 items: 3 of class a, 7 of class b, none of class c. It adds
    # -1/2 (0.3 log2 0.3 + 0.7 log2 0.7) = 0.4406 bits; the pure cluster 2 adds nothing.
    labels = [0] * 3 + [1] * 7 + [2] * 10
    clusters = [1] * 10 + [2] * 10
    added = conditional_entropy_by_cluster(count(labels, clusters))
    np.testing.assert_allclose(added, [0.4406, 0], atol=5e-5)


def test_four_equal_groups_have_two_bits():
    assert entropy_bits(np.array([5, 5, 5, 5])) == pytest.approx(2)
    assert entropy_bits(np.array([9])) == 0


def test_nmi_and_f1_of_a_worked_case():
    # Classes aabb in clusters 1 1 1 2. H(Y) = 1, H(C) = 0.8113, H(Y|C) = 3/4 * 0.9183 = 0.6887,
    # so NMI = 2 * 0.3113 / 1.8113 = 0.3437. Same-cluster pairs 3, same-class pairs 2, both 1:
    # F1 = 2 * 1 / (3 + 2) = 0.4.
    contingency = count([0, 0, 1, 1], [1, 1, 1, 2])
    assert nmi_score(contingency) == pytest.approx(0.3437, abs=5e-5)
    assert pair_f1_score(contingency) == pytest.approx(0.4)


@settings(max_examples=150, deadline=None)
@given(groupings)
def test_scores_agree_with_plain_loops(case):
    labels, clusters = case
    contingency = count(labels, clusters)
    assert nmi_score(contingency) == pytest.approx(nmi(labels, clusters), abs=1e-12)
    assert pair_f1_score(contingency) == pytest.approx(pair_f1(labels, clusters), abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(groupings)
def test_scores_agree_with_scikit_learn(case):
    labels, clusters = case
    contingency = count(labels, clusters)
    peer = normalized_mutual_info_score(labels, clusters, average_method="arithmetic")
    assert nmi_score(contingency) == pytest.approx(peer, abs=1e-9)
    if len(labels) > 1:
        (_, false_positive), (false_negative, true_positive) = pair_confusion_matrix(
            labels, clusters
        )
        pairs = 2 * true_positive + false_positive + false_negative
        expected = 2 * true_positive / pairs if pairs else 1.0
        assert pair_f1_score(contingency) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("score", [nmi_score, pair_f1_score])
def test_scores_ignore_names_order_and_which_grouping_comes_first(score):
    random = np.random.default_rng(0)
    labels, clusters = random.integers(0, 5, 60), random.integers(0, 7, 60)
    value = score(count(labels, clusters))
    order = random.permutation(60)
    assert score(count(labels[order], clusters[order])) == pytest.approx(value)
    assert score(count(100 - 3 * labels, clusters)) == pytest.approx(value)
    assert score(count(clusters, labels)) == pytest.approx(value)


@pytest.mark.parametrize("score", [nmi_score, pair_f1_score])
def test_equal_groupings_score_one_also_with_one_class_or_one_image(score):
    assert score(count([4, 4, 9, 9, 1], [0, 0, 2, 2, 1])) == pytest.approx(1)
    assert score(count([3, 3, 3], [0, 0, 0])) == 1
    assert score(count([3], [0])) == 1
    assert score(count([1, 2, 3], [5, 6, 7])) == pytest.approx(1)


def test_one_cluster_for_many_classes_tells_nothing():
    assert nmi_score(count([0, 1, 2, 3], [0, 0, 0, 0])) == 0


def test_ten_thousand_classes_need_no_full_table():
    random = np.random.default_rng(0)
    labels, clusters = random.integers(0, 10_000, 50_000), random.integers(0, 10_000, 50_000)
    tracemalloc.start()
    contingency = count_contingency(labels, clusters)
    value = nmi_score(contingency)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # A full table would take 10,000 x 10,000 x 8 bytes = 800 MB.
    assert peak < 20e6
    assert 0 < value < 1
