"""NormSoftmax against hand arithmetic, plain loops and a peer library."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning import losses as peer

from tests.references import proxy_losses
from tests.references.proxy_batches import (
    ProxyBatch,
    at_angles,
    batches,
    gradients,
    loss_with_proxies,
    random_batch,
)


def test_worked_value():
    # An image at 60 degrees of class 0; proxies at 0 and 90; T = 0.5.
    # Logits: 0.5 / 0.5 = 1 and 0.866025 / 0.5 = 1.732051.
    # -log(e^1 / (e^1 + e^1.732051)) = log(1 + e^0.732051) = log(3.079341) = 1.124716
    loss = loss_with_proxies("norm_softmax", at_angles(0, 90), temperature=0.5)
    assert loss(at_angles(60), torch.tensor([0])).item() == pytest.approx(1.124716, abs=1e-6)


@settings(deadline=None, max_examples=60)
@given(batches(), st.floats(0.02, 10))
def test_agrees_with_the_plain_definition(batch: ProxyBatch, temperature: float):
    loss = loss_with_proxies("norm_softmax", batch.proxies, temperature=temperature)
    expected = proxy_losses.norm_softmax(*batch.as_lists(), temperature=temperature)
    value = loss(batch.embeddings, batch.labels).item()
    assert value == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_agrees_with_pytorch_metric_learning():
    batch = random_batch(1, images=12, classes=9, dim=6)
    ours = loss_with_proxies("norm_softmax", batch.proxies, temperature=0.05)
    theirs = peer.NormalizedSoftmaxLoss(9, 6, temperature=0.05).double()
    theirs.W.data.copy_(batch.proxies.t())
    value, by_embeddings, by_proxies = gradients(ours, batch.embeddings, batch.labels)
    leaf = batch.embeddings.clone().requires_grad_()
    expected = theirs(leaf, batch.labels)
    expected.backward()
    torch.testing.assert_close(value, expected.detach(), rtol=1e-10, atol=0)
    torch.testing.assert_close(by_embeddings, leaf.grad, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(by_proxies, theirs.W.grad.t(), rtol=1e-8, atol=1e-10)


def test_proxies_start_uniform_within_the_inverse_root_of_the_dimension():
    loss = loss_with_proxies("norm_softmax", torch.zeros(300, 64))
    torch.manual_seed(0)
    loss.initialize_proxies()
    assert 0.124 < loss.proxies.abs().max().item() <= 0.125
    assert loss.proxies.abs().mean().item() == pytest.approx(0.0625, rel=0.02)


def test_active_fraction_counts_images_with_less_than_half_of_the_probability():
    # At 30 degrees of class 0 the proxy at 0 wins; at 60 that at 90 does.
    loss = loss_with_proxies("norm_softmax", at_angles(0, 90))
    loss(at_angles(30, 60, 10, 20), torch.tensor([0, 0, 0, 0]))
    assert loss.diagnostics["active_fraction"].item() == 0.25
