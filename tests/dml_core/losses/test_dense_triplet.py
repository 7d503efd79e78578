"""Dense triplet loss."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from dml_core.losses import dense_triplet
from dml_core.losses.dense_triplet import DenseTripletLoss
from tests.references import continuous_losses
from tests.references.labelled_batches import continuous_batches


def build(**knobs):
    return DenseTripletLoss(**knobs)


HEAD = torch.tensor([0])


def test_worked_value():
    embeddings = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.6, 0.8], [-1.0, 0.0]])
    labels = torch.tensor([[0.0], [1.0], [2.0], [2.0]])
    loss = build(anchors="heads", margin=0.5)(embeddings, labels, HEAD)
    # Squared distances to the anchor: 2, 0.8, 4. Items 2 and 3 are tied, so the triplets are
    # (1, 2): 2 - 0.8 + 0.5 = 1.7 and (1, 3): 2 - 4 + 0.5 < 0, which counts as zero.
    assert loss.item() == pytest.approx(1.7 / 2)


@settings(max_examples=80, deadline=None)
@given(batch=continuous_batches(), heads=st.booleans(), margin=st.sampled_from([0.0, 0.03, 1.0]))
def test_equals_the_slow_definition(batch, heads, margin):
    positions = [0, len(batch.labels) - 1] if heads else list(range(len(batch.labels)))
    loss = build(anchors="heads" if heads else "every", margin=margin)
    value = loss(*batch, torch.tensor(positions))
    expected = continuous_losses.dense_triplet(*batch, positions, margin=margin)
    assert value.item() == pytest.approx(expected, abs=1e-9)
    left_out = continuous_losses.left_out_pairs(batch.labels, positions)
    assert loss.diagnostics["left_out_pairs"].item() == left_out


def test_blocks_of_anchors_give_the_value_of_one_block(monkeypatch):
    generator = torch.Generator().manual_seed(1)
    embeddings, labels = torch.randn(10, 3, generator=generator), torch.randn(10, 2)
    whole = build()(embeddings, labels)
    # Room for three anchors of 100 pairs each: blocks of 3, 3, 3 and 1.
    monkeypatch.setattr(dense_triplet, "_LARGEST_BLOCK", 300)
    assert torch.equal(build()(embeddings, labels), whole)


def test_gradient_is_right():
    embeddings = torch.randn(6, 3, generator=torch.Generator().manual_seed(2)).double()
    labels = torch.tensor([[0.0], [1.0], [1.0], [-1.0], [3.0], [0.0]])
    loss = build()
    assert loss(embeddings, labels) > 0
    assert gradcheck(lambda x: loss(x, labels), embeddings.requires_grad_())


@pytest.mark.parametrize("labels", [[[1.0], [1.0], [1.0]], [[0.0], [1.0], [1.0]]])
def test_batches_without_triplets_give_zero_that_backpropagates(labels):
    embeddings = torch.eye(3, requires_grad=True)
    loss = build(anchors="heads")(embeddings, torch.tensor(labels), HEAD)
    loss.backward()
    assert loss.item() == 0
    assert embeddings.grad.abs().sum() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_copies_and_zero_rows_are_finite_in_every_dtype(dtype):
    rows = [[1.0, 2.0], [1.0, 2.0], [0.0, 0.0], [1.0, 2.5]]
    embeddings = torch.tensor(rows, dtype=dtype, requires_grad=True)
    loss = build()(embeddings, torch.tensor([[0.0], [1.0], [2.0], [4.0]]))
    loss.backward()
    assert loss.item() > 0
    assert embeddings.grad.isfinite().all()


def test_diagnostics_tell_the_active_share():
    loss = build(anchors="heads", margin=0.5)
    embeddings = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.6, 0.8], [-1.0, 0.0]])
    loss(embeddings, torch.tensor([[0.0], [1.0], [2.0], [2.0]]), HEAD)
    # One of the two triplets of the worked value.
    assert loss.diagnostics["active_fraction"].item() == 0.5


def test_missing_heads_are_an_error():
    with pytest.raises(ValueError, match=r"loss\.anchors is 'heads'"):
        build(anchors="heads")(torch.eye(2), torch.zeros(2, 1))
