import numpy as np
import pytest

from dml_core.data.inputs import compute_label_scale, quantize


def test_scale_is_the_standard_deviation():
    labels = np.array([[0.0, 5.0], [2.0, 5.0], [4.0, 5.0]])
    # Deviation of 0, 2, 4 is sqrt(8 / 3); a constant column keeps its unit.
    assert compute_label_scale(labels, standardize=True).tolist() == pytest.approx(
        [np.sqrt(8 / 3), 1.0]
    )
    assert compute_label_scale(labels, standardize=False).tolist() == [1.0, 1.0]


def test_no_columns_have_no_scale():
    assert compute_label_scale(np.empty((4, 0)), standardize=True).shape == (0,)


def test_bins_are_equally_wide():
    labels = np.array([[0.0], [0.9], [1.1], [2.4], [3.0]])
    classes, count = quantize(labels, bins=3)
    assert classes.tolist() == [0, 0, 1, 2, 2]
    assert count == 3


def test_cells_of_two_columns_are_numbered_without_gaps():
    labels = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.1, 0.9]])
    classes, count = quantize(labels, bins=2)
    assert count == 3
    assert classes[1] == classes[3]
    assert sorted(set(classes.tolist())) == [0, 1, 2]
