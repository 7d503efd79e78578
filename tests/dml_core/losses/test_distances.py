"""Tests of distances within a batch."""

import math

import pytest
import torch
from torch.autograd import gradcheck

from dml_core.losses.distances import (
    dot_products,
    exact_distances,
    label_distances,
    log_one_plus_exp,
    log_sum_exp_where,
    mean_where,
    pair_masks,
    self_products,
    sphere_distances,
    unit_vectors,
)


def random_matrix(rows, columns, *, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator, dtype=torch.float64, requires_grad=True)


def test_unit_vectors_divides_each_row_by_its_length():
    # (3, 4) has length 5.
    torch.testing.assert_close(unit_vectors(torch.tensor([[3.0, 4.0]])), torch.tensor([[0.6, 0.8]]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_zero_row_stays_zero_and_gets_a_zero_gradient(dtype):
    rows = torch.tensor([[0.0, 0.0], [1.0, 2.0]], dtype=dtype, requires_grad=True)
    result = unit_vectors(rows.float())
    (result * torch.tensor([3.0, 5.0])).sum().backward()
    assert result[0].tolist() == [0, 0]
    assert rows.grad[0].tolist() == [0, 0]
    assert (rows.grad[1] != 0).all()


def test_gradients_of_unit_vectors_and_self_products_are_right():
    assert gradcheck(unit_vectors, random_matrix(4, 3))
    assert gradcheck(self_products, random_matrix(4, 3))


def test_distances_on_the_sphere_equal_direct_differences():
    unit = unit_vectors(random_matrix(6, 4)).detach()
    direct = (unit.unsqueeze(1) - unit).norm(dim=-1).clamp_min(1e-6)
    torch.testing.assert_close(sphere_distances(self_products(unit)), direct)


def test_the_distance_between_perpendicular_unit_vectors_is_root_two():
    distances = sphere_distances(self_products(torch.eye(2)))
    assert distances[0, 1].item() == pytest.approx(math.sqrt(2))


def test_copies_are_at_the_floor_with_a_finite_gradient():
    rows = torch.ones(3, 4, requires_grad=True)
    distances = sphere_distances(self_products(unit_vectors(rows)))
    assert distances.detach().numpy() == pytest.approx(1e-6)
    distances.sum().backward()
    assert rows.grad.isfinite().all()


def test_dot_products_stay_precise_under_autocast():
    # bfloat16 has 8 bits and would round 1 + 1/1024 to 1.
    left = torch.tensor([[1 + 1 / 1024]])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert dot_products(left, torch.ones(1, 1)).item() == 1 + 1 / 1024
        assert self_products(left).dtype == torch.float32


def test_pair_masks_leave_out_the_diagonal():
    positives, negatives = pair_masks(torch.tensor([5, 9, 5]))
    assert positives.nonzero().tolist() == [[0, 2], [2, 0]]
    assert negatives.nonzero().tolist() == [[0, 1], [1, 0], [1, 2], [2, 1]]


def test_mean_where_is_zero_when_nothing_is_kept():
    values = torch.tensor([1.0, 2.0, 6.0])
    assert mean_where(values, torch.tensor([True, False, True])).item() == 3.5
    assert mean_where(values, torch.zeros(3, dtype=torch.bool)).item() == 0


def test_log_sum_exp_of_an_empty_row_has_exponential_zero_and_a_zero_gradient():
    values = torch.zeros(2, 3, requires_grad=True)
    mask = torch.tensor([[True, True, False], [False, False, False]])
    sums = log_sum_exp_where(values, mask)
    # Two terms of exp(0) make log 2.
    assert sums[0].item() == pytest.approx(math.log(2))
    assert sums[1].exp().item() == 0
    sums.sum().backward()
    assert values.grad.tolist() == [[0.5, 0.5, 0], [0, 0, 0]]


def test_log_one_plus_exp_is_exact_far_out():
    values = torch.tensor([-1e30, 0.0, 30.0, 5000.0], dtype=torch.float64)
    expected = torch.tensor([0.0, math.log(2), 30 + math.exp(-30), 5000.0], dtype=torch.float64)
    torch.testing.assert_close(log_one_plus_exp(values), expected, rtol=1e-15, atol=0)


def test_distances_ranks_and_left_out_pairs_of_a_small_batch():
    labels = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 0.0], [0.0, 1.0]])
    seen = label_distances(labels, torch.tensor([0]), choice="heads")
    # Item 2 has the anchor's own label; items 3 and 1 are at 1 and 5.
    assert seen.distances.tolist() == [[math.inf, 5, math.inf, 1]]
    assert seen.valid.tolist() == [[False, True, False, True]]
    assert seen.ranks.tolist() == [[2, 1, 2, 0]]
    assert seen.left_out_pairs.item() == 1


def test_tied_distances_share_a_rank():
    seen = label_distances(torch.tensor([[0.0], [1.0], [-1.0], [2.0]]), None, choice="every")
    assert seen.anchors.tolist() == [0, 1, 2, 3]
    assert seen.ranks[0].tolist() == [2, 0, 0, 1]


def test_distances_that_float32_would_tie_keep_their_order():
    # 1 - 1e-9 needs more digits than float32 has.
    labels = torch.tensor([[0.0], [1.0], [1 - 1e-9]], dtype=torch.float64)
    assert label_distances(labels, None, choice="every").ranks[0].tolist() == [2, 1, 0]


def test_heads_need_the_positions_of_the_anchors():
    wanted = r"loss\.anchors is 'heads'.*Got a batch without anchors.*anchors=every"
    with pytest.raises(ValueError, match=wanted):
        label_distances(torch.zeros(2, 1), None, choice="heads")


def test_every_ignores_the_heads():
    seen = label_distances(torch.zeros(3, 1), torch.tensor([1]), choice="every")
    assert seen.anchors.tolist() == [0, 1, 2]


def test_near_points_far_out_keep_their_distance():
    # With dot products, 1000^2 leaves float32 no digits for a squared distance of 1e-4.
    points = torch.tensor([[1000.0, 0.0], [1000.0, 0.01]])
    assert exact_distances(points, points)[0, 1].item() == pytest.approx(0.01)
