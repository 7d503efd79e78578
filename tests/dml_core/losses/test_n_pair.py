"""N-pair loss."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning import losses as peers
from torch.autograd import gradcheck

from dml_core.losses.n_pair import NPairLoss
from tests.references import pair_losses
from tests.references.labelled_batches import labelled_batches


def build(**knobs):
    return NPairLoss(**knobs)


def test_worked_value():
    embeddings = torch.tensor([[1.0, 0.0], [0.0, 3.0], [2.0, 0.0], [0.0, 1.0]])
    loss = build(scale=2.0, l2_weight=0.1)(embeddings, torch.tensor([0, 1, 0, 1]))
    # Each anchor equals its positive (s = 2) and is perpendicular to the other class's (s = 0).
    # Lengths 1, 3, 2, 1: mean of squares 15 / 4.
    assert loss.item() == pytest.approx(math.log(1 + math.exp(-2)) + 0.1 * 15 / 4)


@settings(max_examples=60, deadline=None)
@given(
    batch=labelled_batches(),
    normalize=st.booleans(),
    scale=st.sampled_from([1.0, 16.0]),
    l2_weight=st.sampled_from([0.0, 0.02]),
)
def test_equals_the_slow_definition(batch, normalize, scale, l2_weight):
    knobs = {"normalize": normalize, "scale": scale, "l2_weight": l2_weight}
    expected = pair_losses.n_pair(*batch, **knobs)
    assert build(**knobs)(*batch).item() == pytest.approx(expected, abs=1e-9)


def test_equals_pytorch_metric_learning_on_unit_vectors():
    embeddings = torch.randn(23, 6, generator=torch.Generator().manual_seed(1)).double()
    labels = torch.randint(0, 7, (23,), generator=torch.Generator().manual_seed(2))
    peer = peers.NPairsLoss()(embeddings, labels)
    torch.testing.assert_close(build(scale=1.0)(embeddings, labels), peer)


@pytest.mark.parametrize("normalize", [True, False])
def test_gradient_is_right(normalize):
    embeddings = torch.randn(7, 3, generator=torch.Generator().manual_seed(2)).double()
    labels = torch.tensor([0, 1, 0, 1, 1, 2, 2])
    loss = build(normalize=normalize, scale=2.0, l2_weight=0.02)
    assert gradcheck(lambda x: loss(x, labels), embeddings.requires_grad_())


def test_only_the_first_two_samples_of_a_class_take_part():
    generator = torch.Generator().manual_seed(3)
    embeddings = torch.randn(6, 3, generator=generator, requires_grad=True)
    build()(embeddings, torch.tensor([0, 0, 0, 1, 1, 2])).backward()
    took_part = embeddings.grad.abs().sum(dim=1) > 0
    assert took_part.tolist() == [True, True, False, True, True, False]


@pytest.mark.parametrize("labels", [[0, 1, 2], [0, 0, 0]])
def test_batches_without_two_pairs_give_zero_that_backpropagates(labels):
    embeddings = torch.eye(3, requires_grad=True)
    loss = build()(embeddings, torch.tensor(labels))
    loss.backward()
    assert loss.item() == 0
    assert embeddings.grad.abs().sum() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_large_scales_copies_and_zero_rows_are_finite_in_every_dtype(dtype):
    rows = [[1.0, 2.0], [-1.0, -2.0], [0.0, 0.0], [1.0, 2.0], [3.0, 1.0], [3.0, 1.0]]
    embeddings = torch.tensor(rows, dtype=dtype, requires_grad=True)
    loss = build(scale=1000.0)(embeddings, torch.tensor([0, 0, 1, 1, 2, 2]))
    loss.backward()
    # Anchor 0 points away from its positive and towards class 1's: about 2000 / 3 classes.
    assert loss.item() == pytest.approx(2000 / 3, rel=0.01)
    assert embeddings.grad.isfinite().all()


def test_diagnostics_tell_the_mean_similarities():
    loss = build()
    loss(torch.tensor([[1.0, 0], [1, 0], [0, 1], [0.6, 0.8]]), torch.tensor([0, 0, 1, 1]))
    # Anchors (1, 0) and (0, 1), positives (1, 0) and (0.6, 0.8).
    assert loss.diagnostics["positive_similarity"].item() == pytest.approx((1 + 0.8) / 2)
    assert loss.diagnostics["negative_similarity"].item() == pytest.approx((0.6 + 0) / 2)
