"""Logarithms of sums of exponentials: values, groups, extremes."""

import math

import pytest
import torch

from dml_core.losses.proxies import grouped_log_one_plus_sum_exp, log_one_plus_exp


@pytest.mark.parametrize("value", [-1e30, -745.0, -30.0, 0.0, 25.0, 39.9, 40.1, 1e4])
def test_log_one_plus_exp_is_precise_in_float64(value: float):
    expected = value if value > 700 else math.log1p(math.exp(value))
    got = log_one_plus_exp(torch.tensor(value, dtype=torch.float64)).item()
    assert got == pytest.approx(expected, rel=1e-15, abs=0)


def test_groups_are_summed_apart_and_an_empty_one_gives_zero():
    # Group 0: log(1 + e^0 + e^1); group 1 empty; group 2: log(1 + e^-2).
    values = torch.tensor([0.0, -2.0, 1.0], dtype=torch.float64)
    got = grouped_log_one_plus_sum_exp(values, torch.tensor([0, 2, 0]), num_groups=3)
    expected = [math.log(2 + math.e), 0.0, math.log1p(math.exp(-2))]
    assert got.tolist() == pytest.approx(expected, rel=1e-12)


def test_extreme_values_stay_finite_with_a_softmax_gradient():
    values = torch.tensor([1e4, -1e4, 1e4], requires_grad=True)
    got = grouped_log_one_plus_sum_exp(values, torch.tensor([0, 1, 0]), num_groups=2)
    got.sum().backward()
    assert got.tolist() == pytest.approx([1e4 + math.log(2), 0.0])
    assert values.grad is not None
    assert values.grad.tolist() == pytest.approx([0.5, 0.0, 0.5])
