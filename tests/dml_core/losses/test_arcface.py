"""ArcFace against hand arithmetic, plain loops and a peer library."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning import losses as peer

from dml_core.losses.arcface import add_angle
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
    # An image at 30 degrees of class 0; proxies at 0 and 90; margin 30 degrees.
    # Own angle 30 + 30 = 60, other angle 60: both weigh the same, so log 2 at any scale.
    loss = loss_with_proxies("arcface", at_angles(0, 90), margin=math.pi / 6, scale=30.0)
    assert loss(at_angles(30), torch.tensor([0])).item() == pytest.approx(math.log(2))


def test_worked_value_beyond_pi():
    # Own angle 180, margin 90 degrees: 270 > 180, so -1 - (pi/2) sin(pi/2) = -2.570796 stands
    # for the cosine; other angle 90, cosine 0; scale 1: log(1 + e^2.570796) = 2.644488.
    loss = loss_with_proxies("arcface", at_angles(0, 90), margin=math.pi / 2, scale=1.0)
    assert loss(at_angles(180), torch.tensor([0])).item() == pytest.approx(2.644488, abs=1e-6)


@settings(deadline=None, max_examples=60)
@given(batches(), st.floats(0, 3.14), st.floats(0.5, 64))
def test_agrees_with_the_plain_definition(batch: ProxyBatch, margin: float, scale: float):
    loss = loss_with_proxies("arcface", batch.proxies, margin=margin, scale=scale)
    expected = proxy_losses.arcface(*batch.as_lists(), margin=margin, scale=scale)
    value = loss(batch.embeddings, batch.labels).item()
    assert value == pytest.approx(expected, rel=1e-7, abs=1e-9)


@pytest.mark.parametrize("degrees", [0.0, 17.0, 28.6, 100.0, 170.0])
def test_agrees_with_pytorch_metric_learning(degrees: float):
    batch = random_batch(4, images=16, classes=9, dim=6)
    ours = loss_with_proxies("arcface", batch.proxies, margin=math.radians(degrees), scale=30.0)
    theirs = peer.ArcFaceLoss(9, 6, margin=degrees, scale=30).double()
    theirs.W.data.copy_(batch.proxies.t())
    value, by_embeddings, by_proxies = gradients(ours, batch.embeddings, batch.labels)
    leaf = batch.embeddings.clone().requires_grad_()
    expected = theirs(leaf, batch.labels)
    expected.backward()
    torch.testing.assert_close(value, expected.detach(), rtol=1e-10, atol=0)
    torch.testing.assert_close(by_embeddings, leaf.grad, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(by_proxies, theirs.W.grad.t(), rtol=1e-8, atol=1e-10)


def test_margin_zero_is_norm_softmax():
    batch = random_batch(5, images=12, classes=9, dim=6)
    plain = loss_with_proxies("norm_softmax", batch.proxies, temperature=1 / 30)
    ours = loss_with_proxies("arcface", batch.proxies, margin=0.0, scale=30.0)
    torch.testing.assert_close(
        ours(batch.embeddings, batch.labels), plain(batch.embeddings, batch.labels)
    )


@pytest.mark.parametrize("margin", [0.0, 0.3, 1.5, 3.0, math.pi])
def test_added_angle_never_raises_the_cosine(margin: float):
    cosines = torch.linspace(-1, 1, 1001, dtype=torch.float64)
    assert (add_angle(cosines, margin=margin) <= cosines + 1e-7).all()


@pytest.mark.parametrize("cosine", [1.0, -1.0, 1.0000001, -1.0000001, 0.99999994])
@pytest.mark.parametrize("margin", [0.0, 0.3, 3.0, 3.149])
def test_gradient_of_the_angle_is_finite_at_the_poles(cosine: float, margin: float):
    leaf = torch.tensor([cosine], requires_grad=True)
    add_angle(leaf, margin=margin).sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.isfinite().all()


def test_gradient_is_finite_for_an_image_on_its_own_proxy():
    proxies = at_angles(0, 90).float()
    loss = loss_with_proxies("arcface", proxies, scale=1000.0)
    _, by_embeddings, by_proxies = gradients(loss, proxies, torch.tensor([0, 1]))
    assert by_embeddings.isfinite().all()
    assert by_proxies.isfinite().all()
