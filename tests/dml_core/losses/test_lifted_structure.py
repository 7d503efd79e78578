"""Lifted structure loss."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning import losses as peers
from torch.autograd import gradcheck

from dml_core.losses.lifted_structure import LiftedStructureLoss
from tests.references import pair_losses
from tests.references.labelled_batches import labelled_batches


def build(**knobs):
    return LiftedStructureLoss(**knobs)


def test_worked_value():
    embeddings = torch.tensor([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 1.0]])
    loss = build(margin=1.0)(embeddings, torch.tensor([0, 0, 1]))
    # All distances are sqrt(2); each end of the pair has one negative:
    # log(2 exp(1 - sqrt 2)) + sqrt 2 = log 2 + 1, squared and halved.
    assert loss.item() == pytest.approx((math.log(2) + 1) ** 2 / 2)


@settings(max_examples=60, deadline=None)
@given(batch=labelled_batches(), margin=st.sampled_from([0.0, 1.0, 3.0]))
def test_equals_the_slow_definition(batch, margin):
    expected = pair_losses.lifted_structure(*batch, margin=margin)
    assert build(margin=margin)(*batch).item() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("labels", [torch.arange(20) % 6, torch.zeros(20, dtype=torch.int64)])
def test_equals_pytorch_metric_learning_also_without_negatives(labels):
    embeddings = torch.randn(20, 6, generator=torch.Generator().manual_seed(1)).double()
    peer = peers.LiftedStructureLoss(neg_margin=0.7)(embeddings, labels)
    loss = build(margin=0.7)(embeddings, labels)
    torch.testing.assert_close(loss, torch.as_tensor(peer, dtype=torch.float64))


def test_gradient_is_right():
    embeddings = torch.randn(6, 3, generator=torch.Generator().manual_seed(2)).double()
    labels = torch.tensor([0, 0, 0, 1, 1, 2])
    loss = build()
    assert loss(embeddings, labels) > 0
    assert gradcheck(lambda x: loss(x, labels), embeddings.requires_grad_())


@pytest.mark.parametrize("labels", [[0, 1, 2], [0, 0, 0]])
def test_batches_without_a_pair_and_its_negative_give_zero_that_backpropagates(labels):
    embeddings = torch.eye(3, requires_grad=True)
    loss = build()(embeddings, torch.tensor(labels))
    loss.backward()
    assert loss.item() == 0
    assert embeddings.grad.abs().sum() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_copies_and_zero_rows_are_finite_in_every_dtype(dtype):
    rows = [[1.0, 2.0], [1.0, 2.0], [0.0, 0.0], [1.0, 2.1]]
    embeddings = torch.tensor(rows, dtype=dtype, requires_grad=True)
    loss = build(margin=10.0)(embeddings, torch.tensor([0, 0, 1, 1]))
    loss.backward()
    assert loss.isfinite()
    assert embeddings.grad.isfinite().all()


def test_diagnostics_tell_active_pairs_and_distances():
    loss = build(margin=0.0)
    degrees = torch.tensor([0.0, 0.0, 180.0])
    angles = degrees * math.pi / 180
    loss(torch.stack([angles.cos(), angles.sin()], dim=1), torch.tensor([0, 0, 1]))
    # log(2 exp(-2)) + 0 is negative, so neither ordered pair costs anything.
    assert loss.diagnostics["active_fraction"].item() == 0
    assert loss.diagnostics["positive_distance"].item() == pytest.approx(1e-6, abs=1e-6)
    assert loss.diagnostics["negative_distance"].item() == pytest.approx(2)
