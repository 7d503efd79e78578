"""Proxy-Anchor against hand arithmetic, plain loops, a peer library and its own gradient."""

import math

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
    # Cosines: x0 at 0 degrees of class 0, x1 at 60 of class 1; proxies at 0 and 90.
    #   s(x0,p0) = 1, s(x0,p1) = 0, s(x1,p0) = 0.5, s(x1,p1) = sin 60 = 0.866025
    # alpha = 2, delta = 0.5:
    #   pull p0: log(1 + e^(-2 (1 - 0.5)))        = log(1 + e^-1)        = 0.313262
    #   pull p1: log(1 + e^(-2 (0.866025 - 0.5))) = log(1 + e^-0.732051) = 0.392664
    #   push p0: log(1 + e^(2 (0.5 + 0.5)))       = log(1 + e^2)         = 2.126928
    #   push p1: log(1 + e^(2 (0 + 0.5)))         = log(1 + e^1)         = 1.313262
    #   (0.313262 + 0.392664) / 2 + (2.126928 + 1.313262) / 2 = 2.073058
    loss = loss_with_proxies("proxy_anchor", at_angles(0, 90), alpha=2.0, delta=0.5)
    value = loss(at_angles(0, 60), torch.tensor([0, 1]))
    assert value.item() == pytest.approx(2.073058, abs=1e-6)


def test_divisors_are_present_classes_for_pulls_and_all_classes_for_pushes():
    # One image at 0 degrees on its own proxy; absent proxies at 90 and 180. alpha = 1, delta = 0.
    #   pull: log(1 + e^-1) / 1;  push: (0 + log(1 + e^0) + log(1 + e^-1)) / 3
    loss = loss_with_proxies("proxy_anchor", at_angles(0, 90, 180), alpha=1.0, delta=0.0)
    value = loss(at_angles(0), torch.tensor([0]))
    near = math.log(1 + math.exp(-1))
    assert value.item() == pytest.approx(near + (math.log(2) + near) / 3)


@settings(deadline=None, max_examples=60)
@given(batches(), st.floats(0.5, 64), st.floats(0, 1))
def test_agrees_with_the_plain_definition(batch: ProxyBatch, alpha: float, delta: float):
    loss = loss_with_proxies("proxy_anchor", batch.proxies, alpha=alpha, delta=delta)
    expected = proxy_losses.proxy_anchor(*batch.as_lists(), alpha=alpha, delta=delta)
    value = loss(batch.embeddings, batch.labels).item()
    assert value == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("classes", [2, 7, 40])
def test_agrees_with_pytorch_metric_learning(classes: int):
    batch = random_batch(classes, images=12, classes=classes, dim=6)
    ours = loss_with_proxies("proxy_anchor", batch.proxies, alpha=32.0, delta=0.1)
    theirs = peer.ProxyAnchorLoss(classes, 6, margin=0.1, alpha=32).double()
    theirs.proxies.data.copy_(batch.proxies)
    value, by_embeddings, by_proxies = gradients(ours, batch.embeddings, batch.labels)
    leaf = batch.embeddings.clone().requires_grad_()
    expected = theirs(leaf, batch.labels)
    expected.backward()
    torch.testing.assert_close(value, expected.detach(), rtol=1e-10, atol=0)
    torch.testing.assert_close(by_embeddings, leaf.grad, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(by_proxies, theirs.proxies.grad, rtol=1e-8, atol=1e-10)


def test_gradient_by_similarity_has_its_closed_form():
    # The paper: -(a/|P+|) h+/(1 + sum h+) for pairs of one class, (a/|P|) h-/(1 + sum h-) else.
    alpha, delta = 8.0, 0.1
    batch = random_batch(3, images=7, classes=5, dim=5)
    # Proxies that are coordinate axes make an embedding's unit vector its row of cosines.
    proxies = torch.eye(5, dtype=torch.float64)
    cosines = torch.nn.functional.normalize(batch.embeddings, dim=1)
    own = torch.nn.functional.one_hot(batch.labels, 5).bool()
    pulling = torch.where(own, (-alpha * (cosines - delta)).exp(), 0.0)
    pushing = torch.where(own, 0.0, (alpha * (cosines + delta)).exp())
    num_present = batch.labels.unique().numel()
    expected = (alpha / 5) * pushing / (1 + pushing.sum(0))
    expected -= (alpha / num_present) * pulling / (1 + pulling.sum(0))
    loss = loss_with_proxies("proxy_anchor", proxies, alpha=alpha, delta=delta)
    _, by_embeddings, _ = gradients(loss, cosines, batch.labels)
    # The normalisation lets only the part across the embedding through.
    across = expected - cosines * (expected * cosines).sum(1, keepdim=True)
    torch.testing.assert_close(by_embeddings, across, rtol=1e-9, atol=1e-12)


def test_proxies_start_with_the_kaiming_fan_out_spread():
    loss = loss_with_proxies("proxy_anchor", torch.zeros(200, 100))
    torch.manual_seed(0)
    loss.initialize_proxies()
    assert loss.proxies.std().item() == pytest.approx(math.sqrt(2 / 200), rel=0.02)


def test_a_batch_of_one_class_pushes_only_absent_proxies():
    # p0 has no image to push: its column of the push is empty and adds log(1 + 0) = 0.
    loss = loss_with_proxies("proxy_anchor", at_angles(0, 180), alpha=4.0, delta=0.0)
    value, by_embeddings, by_proxies = gradients(loss, at_angles(90, 90), torch.tensor([0, 0]))
    # pull: log(1 + 2 e^0); push: (0 + log(1 + 2 e^0)) / 2
    assert value.item() == pytest.approx(1.5 * math.log(3))
    assert by_embeddings.isfinite().all()
    assert by_proxies.isfinite().all()


def test_active_fraction_counts_proxies_with_a_sum_of_exponentials_above_one():
    # alpha = 4, delta = 0; images at 0 (class 0) and 90.001 degrees (class 1).
    #   p0 at 0:   pull e^(-4 * 1), push e^(4 * -0.00002), both below 1: inactive
    #   p1 at 180: pull e^(-4 * 0.00002), push e^(4 * -1), both below 1: inactive
    #   p2 at 45:  push 2 e^(4 * 0.707), above 1: active
    loss = loss_with_proxies("proxy_anchor", at_angles(0, 180, 45), alpha=4.0, delta=0.0)
    loss(at_angles(0, 90.001), torch.tensor([0, 1]))
    assert loss.diagnostics["active_fraction"].item() == pytest.approx(1 / 3)
