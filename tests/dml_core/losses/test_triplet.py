"""Triplet loss."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning import losses as peers
from pytorch_metric_learning import miners, reducers
from torch.autograd import gradcheck

from dml_core.losses.triplet import TripletLoss
from tests.references import pair_losses
from tests.references.labelled_batches import labelled_batches

MININGS = ["all", "semi_hard", "hard"]


def build(**knobs):
    return TripletLoss(**knobs)


def on_circle(*degrees):
    angles = torch.tensor(degrees, dtype=torch.float64) * math.pi / 180
    return torch.stack([angles.cos(), angles.sin()], dim=1)


def chord(degrees):
    return 2 * math.sin(math.radians(degrees) / 2)


# Anchors of class 0 at 0 and 20 degrees, one sample of class 1 at 30: triplets (0, 20 | 30) and
# (20, 0 | 30); the sample of class 1 has no positive.
#   first:  chord(20) - chord(30) + 0.2 = 0.0297, and the positive is nearer: semi-hard
#   second: chord(20) - chord(10) + 0.2 = 0.3730, the negative is nearer
@pytest.mark.parametrize(
    ("mining", "expected"),
    [
        ("all", (2 * chord(20) - chord(30) - chord(10)) / 2 + 0.2),
        ("semi_hard", chord(20) - chord(30) + 0.2),
        ("hard", (2 * chord(20) - chord(30) - chord(10)) / 2 + 0.2),
    ],
)
def test_worked_value(mining, expected):
    loss = build(mining=mining, margin=0.2)(on_circle(0, 20, 30), torch.tensor([0, 0, 1]))
    assert loss.item() == pytest.approx(expected)


@settings(max_examples=150, deadline=None)
@given(
    batch=labelled_batches(),
    mining=st.sampled_from(MININGS),
    margin=st.sampled_from([0.0, 0.05, 0.2, 1.0]),
)
def test_equals_the_slow_definition(batch, mining, margin):
    expected = pair_losses.triplet(*batch, margin=margin, mining=mining)
    loss = build(mining=mining, margin=margin)(*batch)
    assert loss.item() == pytest.approx(expected, abs=1e-9)


PEERS = {
    "all": (lambda margin: None, reducers.AvgNonZeroReducer()),
    "semi_hard": (lambda m: miners.TripletMarginMiner(m, "semihard"), reducers.MeanReducer()),
    "hard": (lambda margin: miners.BatchHardMiner(), reducers.MeanReducer()),
}


@pytest.mark.parametrize("mining", MININGS)
def test_equals_pytorch_metric_learning(mining):
    embeddings = torch.randn(30, 6, generator=torch.Generator().manual_seed(3)).double()
    labels = torch.arange(30) % 8
    build_miner, reducer = PEERS[mining]
    miner = build_miner(0.3)
    mined = miner(embeddings, labels) if miner else None
    peer = peers.TripletMarginLoss(margin=0.3, reducer=reducer)(embeddings, labels, mined)
    torch.testing.assert_close(build(mining=mining, margin=0.3)(embeddings, labels), peer)


@pytest.mark.parametrize("mining", MININGS)
def test_gradient_is_right(mining):
    embeddings = torch.randn(7, 3, generator=torch.Generator().manual_seed(4)).double()
    labels = torch.tensor([0, 0, 0, 1, 1, 2, 2])
    loss = build(mining=mining, margin=0.3)
    assert loss(embeddings, labels) > 0
    assert gradcheck(lambda x: loss(x, labels), embeddings.requires_grad_())


@pytest.mark.parametrize("mining", MININGS)
@pytest.mark.parametrize("labels", [[0, 1, 2], [0, 0, 0]])
def test_batches_without_triplets_give_zero_that_backpropagates(mining, labels):
    embeddings = torch.eye(3, requires_grad=True)
    loss = build(mining=mining)(embeddings, torch.tensor(labels))
    loss.backward()
    assert loss.item() == 0
    assert embeddings.grad.abs().sum() == 0


def test_hard_mining_counts_anchors_that_meet_the_margin():
    # Anchors 0 and 1 coincide, 4 degrees from their nearest negative, anchor 3. Anchor 2 has its
    # positive at 86 degrees and its nearest negatives at 90, anchor 3 at 86 and at 4.
    embeddings, labels = on_circle(0, 0, 90, 4), torch.tensor([0, 0, 1, 1])
    terms = [
        0.2 + 1e-6 - chord(4),
        0.2 + 1e-6 - chord(4),
        chord(86) - chord(90) + 0.2,
        chord(86) - chord(4) + 0.2,
    ]
    loss = build(mining="hard", margin=0.2)(embeddings, labels)
    assert loss.item() == pytest.approx(sum(terms) / 4)
    loose = build(mining="hard", margin=0.06)(embeddings, labels)
    # chord(4) is 0.0698: at margin 0.06 the first two are met and still divide.
    assert loose.item() == pytest.approx((sum(terms[2:]) - 2 * 0.14) / 4)


def test_a_margin_lost_in_rounding_keeps_no_semi_hard_triplet():
    # Positive and negative of each anchor are equally far, and 1e-12 vanishes beside 1.
    embeddings = torch.eye(3)
    loss = build(mining="semi_hard", margin=1e-12)
    assert loss(embeddings, torch.tensor([0, 0, 1])).item() == 0
    assert loss.diagnostics["active_fraction"].item() == 0


@pytest.mark.parametrize("mining", MININGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_copies_and_zero_rows_are_finite_in_every_dtype(mining, dtype):
    rows = [[1.0, 2.0], [1.0, 2.0], [0.0, 0.0], [1.0, 2.1], [1.0, 2.0]]
    embeddings = torch.tensor(rows, dtype=dtype, requires_grad=True)
    loss = build(mining=mining)(embeddings, torch.tensor([0, 0, 1, 1, 1]))
    loss.backward()
    assert loss.isfinite()
    assert embeddings.grad.isfinite().all()


def test_diagnostics_tell_the_mined_triplets():
    loss = build(mining="semi_hard", margin=0.2)
    loss(on_circle(0, 20, 30), torch.tensor([0, 0, 1]))
    # One of two triplets is semi-hard (see the worked value).
    assert loss.diagnostics["active_fraction"].item() == 0.5
    assert loss.diagnostics["positive_distance"].item() == pytest.approx(chord(20))
    assert loss.diagnostics["negative_distance"].item() == pytest.approx(chord(30))


@pytest.mark.parametrize("mining", MININGS)
def test_no_tensor_of_a_batch_of_600_has_an_entry_for_each_triplet(mining):
    embeddings = torch.randn(600, 16, generator=torch.Generator().manual_seed(5))
    embeddings.requires_grad_()
    labels = torch.arange(600) % 2
    sizes = []

    class Recorder(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            parts = result if isinstance(result, tuple | list) else [result]
            sizes.extend(part.numel() for part in parts if isinstance(part, torch.Tensor))
            return result

    with Recorder():
        build(mining=mining)(embeddings, labels).backward()
    assert 600**2 <= max(sizes) < 2 * 600**2
    assert embeddings.grad.abs().sum() > 0
