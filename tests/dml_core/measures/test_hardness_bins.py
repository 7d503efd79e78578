import numpy as np
import pytest

from dml_core.measures.gradients import average_by_bin


def test_means_of_the_bins_with_enough_pairs_stand_at_their_middles():
    hardness = np.array([0.12, -0.03, 0.14, 0.19, 0.149, -0.01, 0.55])
    values = np.array([1.0, 10.0, 2.0, 50.0, 3.0, 20.0, 7.0])
    found = average_by_bin(hardness, values, width=0.05, min_pairs=2)
    assert found == [(-0.025, 15.0), (0.125, 2.0)]


def test_every_pair_counts_once():
    random = np.random.default_rng(0)
    hardness, values = random.uniform(-1, 2, 500), random.uniform(0, 1, 500)
    found = average_by_bin(hardness, values, width=0.1, min_pairs=1)
    for middle, mean in found:
        inside = values[(hardness >= middle - 0.05) & (hardness < middle + 0.05)]
        assert mean == pytest.approx(inside.mean())
    assert [middle for middle, _ in found] == sorted(middle for middle, _ in found)


def test_nothing_gives_nothing():
    assert average_by_bin(np.empty(0), np.empty(0)) == []
