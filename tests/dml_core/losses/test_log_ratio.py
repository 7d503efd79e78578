"""Log-ratio loss."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from dml_core.losses.log_ratio import LogRatioLoss
from tests.references import continuous_losses
from tests.references.labelled_batches import continuous_batches


def build(**knobs):
    return LogRatioLoss(**knobs)


HEAD = torch.tensor([0])


def test_worked_value_with_squared_distances_and_raw_embeddings():
    embeddings = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 6.0]])
    labels = torch.tensor([[0.0], [1.0], [3.0]])
    loss = build(anchors="heads")(embeddings, labels, HEAD)
    # log(9 / 36) - log(1 / 9) = log(9 / 4).
    assert loss.item() == pytest.approx(math.log(9 / 4) ** 2)


def test_every_item_is_an_anchor_by_default():
    embeddings = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 6.0]])
    labels = torch.tensor([[0.0], [1.0], [3.0]])
    # Anchor 0: log(9/36) - log(1/9). Anchor 1: labels at 1 and 2, log(9/45) - log(1/4).
    # Anchor 2: item 1 (label distance 2) before item 0 (3): log(45/36) - log(4/9).
    terms = [math.log(9 / 4), math.log(4 / 5), math.log(45 / 16)]
    loss = build()(embeddings, labels)
    assert loss.item() == pytest.approx(sum(x * x for x in terms) / 3)


@settings(max_examples=100, deadline=None)
@given(batch=continuous_batches(), heads=st.booleans())
def test_equals_the_slow_definition(batch, heads):
    positions = [0, len(batch.labels) - 1] if heads else list(range(len(batch.labels)))
    loss = build(anchors="heads" if heads else "every")
    value = loss(*batch, torch.tensor(positions))
    expected = continuous_losses.log_ratio(*batch, positions)
    assert value.item() == pytest.approx(expected, abs=1e-9)
    left_out = continuous_losses.left_out_pairs(batch.labels, positions)
    assert loss.diagnostics["left_out_pairs"].item() == left_out


def test_gradient_of_one_triplet_has_the_closed_form():
    generator = torch.Generator().manual_seed(1)
    embeddings = torch.randn(3, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    build(anchors="heads")(embeddings, torch.tensor([[0.0], [1.0], [2.0]]), HEAD).backward()
    a, i, j = embeddings.detach()
    near, far = (i - a).square().sum(), (j - a).square().sum()
    difference = (near / far).log() - math.log(1 / 4)
    towards_i, towards_j = (i - a) / near, (j - a) / far
    expected = 4 * difference * torch.stack([towards_j - towards_i, towards_i, -towards_j])
    torch.testing.assert_close(embeddings.grad, expected)


def test_gradient_is_right_with_ties():
    embeddings = torch.randn(6, 3, generator=torch.Generator().manual_seed(2)).double()
    labels = torch.tensor([[0.0], [1.0], [1.0], [-1.0], [3.0], [0.0]])
    loss = build()
    assert loss(embeddings, labels) > 0
    assert gradcheck(lambda x: loss(x, labels), embeddings.requires_grad_())


def test_equal_ratios_give_zero():
    labels = torch.tensor([[0.0, 1.0], [2.0, 2.0], [5.0, -1.0], [1.0, 1.0]])
    assert build()(3 * labels + 7, labels).item() == pytest.approx(0, abs=1e-10)


@pytest.mark.parametrize("labels", [[[1.0], [1.0], [1.0]], [[0.0], [1.0], [1.0]]])
def test_batches_without_triplets_give_zero_that_backpropagates(labels):
    embeddings = torch.eye(3, requires_grad=True)
    loss = build(anchors="heads")(embeddings, torch.tensor(labels), HEAD)
    loss.backward()
    assert loss.item() == 0
    assert embeddings.grad.abs().sum() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_coincident_embeddings_are_finite_in_every_dtype(dtype):
    rows = [[1.0, 2.0], [1.0, 2.0], [0.0, 0.0], [1.0, 2.5]]
    embeddings = torch.tensor(rows, dtype=dtype, requires_grad=True)
    loss = build(anchors="heads")(embeddings, torch.tensor([[0.0], [1.0], [2.0], [4.0]]), HEAD)
    loss.backward()
    assert loss.item() > 1
    assert embeddings.grad.isfinite().all()
    # The copy of the anchor has no direction to go; the others have.
    assert embeddings.grad[1].abs().sum() == 0
    assert embeddings.grad[2].abs().sum() > 0


def test_missing_heads_are_an_error():
    with pytest.raises(ValueError, match=r"loss\.anchors is 'heads'"):
        build(anchors="heads")(torch.eye(2), torch.zeros(2, 1))
