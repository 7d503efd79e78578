"""Proxy-NCA, in both variants, against hand arithmetic, plain loops and a peer library."""

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


@pytest.mark.parametrize(
    ("target_in_denominator", "expected"), [(False, 0.795106), (True, 1.167727)]
)
def test_worked_value(target_in_denominator: bool, expected: float):
    # An image at 60 degrees of class 0; proxies at 0, 90 and 180; scale 1.
    # Squared distances 2 - 2 cos: 1, 0.267949 and 3.
    #   others only: -log(e^-1 / (e^-0.267949 + e^-3)) = 1 + log(0.814734) = 0.795106
    #   all:         -log(e^-1 / (e^-1 + e^-0.267949 + e^-3)) = 1 + log(1.182613) = 1.167727
    loss = loss_with_proxies(
        "proxy_nca",
        at_angles(0, 90, 180),
        scale=1.0,
        target_in_denominator=target_in_denominator,
    )
    assert loss(at_angles(60), torch.tensor([0])).item() == pytest.approx(expected, abs=1e-6)


@settings(deadline=None, max_examples=60)
@given(batches(min_classes=2), st.floats(0.1, 64), st.booleans())
def test_agrees_with_the_plain_definition(batch: ProxyBatch, scale: float, in_denominator: bool):
    knobs = {"scale": scale, "target_in_denominator": in_denominator}
    loss = loss_with_proxies("proxy_nca", batch.proxies, **knobs)
    expected = proxy_losses.proxy_nca(*batch.as_lists(), **knobs)
    value = loss(batch.embeddings, batch.labels).item()
    assert value == pytest.approx(expected, rel=1e-9, abs=1e-11)


def test_agrees_with_pytorch_metric_learning_with_the_target_in_the_denominator():
    batch = random_batch(2, images=12, classes=9, dim=6)
    ours = loss_with_proxies("proxy_nca", batch.proxies, scale=32.0, target_in_denominator=True)
    theirs = peer.ProxyNCALoss(9, 6, softmax_scale=32).double()
    theirs.proxies.data.copy_(batch.proxies)
    value, by_embeddings, by_proxies = gradients(ours, batch.embeddings, batch.labels)
    leaf = batch.embeddings.clone().requires_grad_()
    expected = theirs(leaf, batch.labels)
    expected.backward()
    torch.testing.assert_close(value, expected.detach(), rtol=1e-10, atol=0)
    torch.testing.assert_close(by_embeddings, leaf.grad, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(by_proxies, theirs.proxies.grad, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("target_in_denominator", [False, True])
def test_a_single_class_gives_zero_and_zero_gradients(target_in_denominator: bool):
    loss = loss_with_proxies("proxy_nca", at_angles(0), target_in_denominator=target_in_denominator)
    value, by_embeddings, by_proxies = gradients(loss, at_angles(50, 70), torch.tensor([0, 0]))
    assert value == 0
    assert not by_embeddings.any()
    assert not by_proxies.any()


def test_paper_variant_is_negative_when_the_own_proxy_outweighs_the_others():
    # Own at distance 0, other opposite: log(e^(-4 scale) / e^0) = -4 * 8 = -32.
    loss = loss_with_proxies("proxy_nca", at_angles(0, 180), scale=8.0)
    assert loss(at_angles(0), torch.tensor([0])).item() == pytest.approx(-32.0)
    assert loss.diagnostics["active_fraction"] == 0


def test_proxies_start_standard_normal():
    loss = loss_with_proxies("proxy_nca", torch.zeros(200, 100))
    torch.manual_seed(0)
    loss.initialize_proxies()
    assert loss.proxies.std().item() == pytest.approx(1.0, rel=0.02)
