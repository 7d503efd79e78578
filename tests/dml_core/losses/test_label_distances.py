"""Label distances seen from anchors."""

import math

import pytest
import torch

from dml_core.losses.distances import exact_distances, label_distances


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


def test_heads_must_be_given_when_asked_for():
    with pytest.raises(ValueError, match=r"loss\.anchors is 'heads'.*Got none.*anchors=every"):
        label_distances(torch.zeros(2, 1), None, choice="heads")


def test_every_ignores_the_heads():
    seen = label_distances(torch.zeros(3, 1), torch.tensor([1]), choice="every")
    assert seen.anchors.tolist() == [0, 1, 2]


def test_near_points_far_out_keep_their_distance():
    # With dot products, 1000^2 leaves float32 no digits for a squared distance of 1e-4.
    points = torch.tensor([[1000.0, 0.0], [1000.0, 0.01]])
    assert exact_distances(points, points)[0, 1].item() == pytest.approx(0.01)
