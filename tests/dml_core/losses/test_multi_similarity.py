"""Multi-similarity loss."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning import losses as peers
from pytorch_metric_learning import miners
from torch.autograd import gradcheck

from dml_core.losses.multi_similarity import MultiSimilarityLoss
from tests.references import pair_losses
from tests.references.labelled_batches import labelled_batches


def build(**knobs):
    return MultiSimilarityLoss(**knobs)


def test_worked_value():
    embeddings = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]])
    loss = build(alpha=2.0, beta=4.0, base=0.5, mining_epsilon=None)
    # Anchor 0: positive at cosine 0, negative at 1. Anchor 1: positive at 0, negative at 0.
    # Anchor 2: no positive, negatives at 1 and 0.
    pull, near, far = math.log(1 + math.e) / 2, math.exp(2), math.exp(-2)
    pushes = [math.log(1 + near) / 4, math.log(1 + far) / 4, math.log(1 + near + far) / 4]
    expected = (2 * pull + sum(pushes)) / 3
    assert loss(embeddings, torch.tensor([0, 0, 1])).item() == pytest.approx(expected)


def test_mining_drops_easy_pairs_and_anchors_without_positive():
    embeddings = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]])
    loss = build(alpha=2.0, beta=4.0, base=0.5, mining_epsilon=0.1)
    # As above, but anchor 2 has no positive and so mines no negative.
    pull, near, far = math.log(1 + math.e) / 2, math.exp(2), math.exp(-2)
    expected = (2 * pull + math.log(1 + near) / 4 + math.log(1 + far) / 4) / 3
    assert loss(embeddings, torch.tensor([0, 0, 1])).item() == pytest.approx(expected)
    # Two of two positive pairs and two of four negative ones are mined.
    assert loss.diagnostics["active_fraction"].item() == pytest.approx(4 / 6)
    assert loss.diagnostics["positive_distance"].item() == pytest.approx(math.sqrt(2))
    assert loss.diagnostics["negative_distance"].item() == pytest.approx(math.sqrt(2) / 2)


@settings(max_examples=100, deadline=None)
@given(
    batch=labelled_batches(),
    alpha=st.sampled_from([2.0, 20.0]),
    beta=st.sampled_from([5.0, 50.0]),
    base=st.sampled_from([0.5, -0.2]),
    epsilon=st.sampled_from([None, 0.01, 0.1, 0.5]),
)
def test_equals_the_slow_definition(batch, alpha, beta, base, epsilon):
    knobs = {"alpha": alpha, "beta": beta, "base": base}
    expected = pair_losses.multi_similarity(*batch, **knobs, epsilon=epsilon)
    loss = build(**knobs, mining_epsilon=epsilon)(*batch)
    assert loss.item() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("epsilon", [None, 0.1])
def test_equals_pytorch_metric_learning(epsilon):
    embeddings = torch.randn(30, 6, generator=torch.Generator().manual_seed(1)).double()
    labels = torch.arange(30) % 8
    mined = None if epsilon is None else miners.MultiSimilarityMiner(epsilon)(embeddings, labels)
    peer = peers.MultiSimilarityLoss(alpha=2, beta=50, base=0.5)(embeddings, labels, mined)
    torch.testing.assert_close(build(mining_epsilon=epsilon)(embeddings, labels), peer)


@pytest.mark.parametrize("epsilon", [None, 0.1])
def test_gradient_is_right(epsilon):
    embeddings = torch.randn(7, 3, generator=torch.Generator().manual_seed(2)).double()
    labels = torch.tensor([0, 1, 0, 1, 1, 2, 2])
    loss = build(beta=10.0, mining_epsilon=epsilon)
    assert loss(embeddings, labels) > 0
    assert gradcheck(lambda x: loss(x, labels), embeddings.requires_grad_())


@pytest.mark.parametrize("labels", [[0, 1, 2], [0, 0, 0], [0, 0, 1]])
def test_a_batch_where_mining_leaves_nothing_gives_zero_that_backpropagates(labels):
    rows = [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    embeddings = torch.tensor(rows, requires_grad=True)
    loss = build(mining_epsilon=0.1)(embeddings, torch.tensor(labels))
    loss.backward()
    assert loss.item() == 0
    assert embeddings.grad.abs().sum() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_sharp_knobs_copies_and_zero_rows_are_finite_in_every_dtype(dtype):
    rows = [[1.0, 2.0], [-1.0, -2.0], [0.0, 0.0], [1.0, 2.0]]
    embeddings = torch.tensor(rows, dtype=dtype, requires_grad=True)
    loss = build(alpha=1000.0, beta=1000.0, mining_epsilon=None)
    value = loss(embeddings, torch.tensor([0, 0, 1, 1]))
    value.backward()
    assert value.isfinite()
    assert value > 0
    assert embeddings.grad.isfinite().all()
