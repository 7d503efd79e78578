"""Contrastive loss."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning import losses as peers
from torch.autograd import gradcheck

from dml_core.losses.contrastive import ContrastiveLoss
from tests.references import pair_losses
from tests.references.labelled_batches import labelled_batches


def build(**knobs):
    return ContrastiveLoss(**knobs)


def test_worked_value():
    embeddings = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]])
    loss = build(positive_margin=0.4, negative_margin=0.5)(embeddings, torch.tensor([0, 0, 1]))
    # Positive pair at a right angle: sqrt(2) - 0.4. Negative pairs: 0 and 2 coincide, 0.5 - 1e-6;
    # 1 and 2 are farther than 0.5 and do not count.
    assert loss.item() == pytest.approx(math.sqrt(2) - 0.4 + 0.5, abs=2e-6)


@settings(max_examples=60, deadline=None)
@given(
    batch=labelled_batches(),
    positive_margin=st.sampled_from([0.0, 0.3, 1.0]),
    negative_margin=st.sampled_from([0.0, 0.5, 1.3]),
)
def test_equals_the_slow_definition(batch, positive_margin, negative_margin):
    knobs = {"positive_margin": positive_margin, "negative_margin": negative_margin}
    expected = pair_losses.contrastive(*batch, **knobs)
    assert build(**knobs)(*batch).item() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("margins", [(0.0, 0.5), (0.2, 1.3)])
def test_equals_pytorch_metric_learning(margins):
    embeddings = torch.randn(24, 8, generator=torch.Generator().manual_seed(1)).double()
    labels = torch.arange(24) % 7
    peer = peers.ContrastiveLoss(pos_margin=margins[0], neg_margin=margins[1])
    loss = build(positive_margin=margins[0], negative_margin=margins[1])(embeddings, labels)
    torch.testing.assert_close(loss, peer(embeddings, labels))


def test_gradient_is_right():
    embeddings = torch.randn(6, 3, generator=torch.Generator().manual_seed(2)).double()
    labels = torch.tensor([0, 0, 0, 1, 1, 2])
    loss = build(positive_margin=0.1, negative_margin=1.5)
    assert loss(embeddings, labels) > 0
    assert gradcheck(lambda x: loss(x, labels), embeddings.requires_grad_())


def test_copies_of_one_class_do_not_dilute_the_mean():
    embeddings = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    # Four of six ordered pairs are at sqrt(2); the two of the copies do not count.
    loss = build()(embeddings, torch.tensor([0, 0, 0]))
    assert loss.item() == pytest.approx(math.sqrt(2))


@pytest.mark.parametrize("labels", [[0, 1, 2], [0, 0, 0]])
def test_inactive_pairs_give_zero_that_backpropagates(labels):
    embeddings = torch.eye(3, requires_grad=True)
    loss = build(positive_margin=1.5, negative_margin=0.1)(embeddings, torch.tensor(labels))
    loss.backward()
    assert loss.item() == 0
    assert embeddings.grad.abs().sum() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_copies_and_zero_rows_are_finite_in_every_dtype(dtype):
    rows = [[1.0, 2.0], [1.0, 2.0], [0.0, 0.0], [1.0, 2.1]]
    embeddings = torch.tensor(rows, dtype=dtype, requires_grad=True)
    loss = build()(embeddings, torch.tensor([0, 0, 1, 1]))
    loss.backward()
    assert loss.dtype == torch.float32
    assert loss.isfinite()
    assert embeddings.grad.isfinite().all()


def test_diagnostics_tell_active_pairs_and_their_distances():
    loss = build(negative_margin=0.5)
    loss(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), torch.tensor([0, 0, 1]))
    # Of six ordered pairs, (0, 1) and (1, 0) pull, (0, 2) and (2, 0) push.
    assert loss.diagnostics["active_fraction"].item() == pytest.approx(4 / 6)
    assert loss.diagnostics["positive_distance"].item() == pytest.approx(math.sqrt(2))
    assert loss.diagnostics["negative_distance"].item() == pytest.approx(1e-6)
