"""The share of proxies in a step: the whole, the batch's classes, chance, cost, direction."""

import math
import time

import pytest
import torch
from torch.nn import functional

from dml_core.losses.registry import build_loss
from tests.references import proxy_losses
from tests.references.proxy_batches import gradients, loss_with_proxies, random_batch

PROXY_LOSSES = ["proxy_nca", "proxy_anchor", "norm_softmax", "arcface"]


@pytest.mark.parametrize("name", PROXY_LOSSES)
def test_ratio_one_is_the_full_loss_bit_for_bit(name: str):
    batch = random_batch(1, images=8, classes=30, dim=5)
    plain = loss_with_proxies(name, batch.proxies.float())
    whole = loss_with_proxies(name, batch.proxies.float(), proxy_ratio=1.0)
    whole.reseed(torch.Generator().manual_seed(99))
    state = whole.generator.get_state()
    ours = gradients(whole, batch.embeddings.float(), batch.labels)
    expected = gradients(plain, batch.embeddings.float(), batch.labels)
    assert all(torch.equal(a, b) for a, b in zip(ours, expected, strict=True))
    assert torch.equal(whole.generator.get_state(), state)


@pytest.mark.parametrize("name", PROXY_LOSSES)
@pytest.mark.parametrize("proxy_ratio", [0.01, 0.2, 0.61, 0.99])
def test_the_subset_holds_the_batch_and_has_the_wanted_size(name: str, proxy_ratio: float):
    batch = random_batch(2, images=8, classes=50, dim=5)
    loss = loss_with_proxies(name, batch.proxies, proxy_ratio=proxy_ratio)
    _, _, by_proxies = gradients(loss, batch.embeddings, batch.labels)
    touched = by_proxies.abs().sum(1).nonzero().squeeze(1)
    present = batch.labels.unique()
    assert set(present.tolist()) <= set(touched.tolist())
    assert touched.numel() == max(present.numel(), math.ceil(proxy_ratio * 50))


def test_second_divisor_of_proxy_anchor_is_the_number_that_takes_part():
    # A subset as small as the batch's classes is the full loss over those classes alone.
    batch = random_batch(3, images=6, classes=40, dim=4)
    loss = loss_with_proxies("proxy_anchor", batch.proxies, proxy_ratio=0.001)
    present, targets = batch.labels.unique(return_inverse=True)
    expected = proxy_losses.proxy_anchor(
        batch.embeddings.tolist(),
        targets.tolist(),
        batch.proxies[present].tolist(),
        alpha=32.0,
        delta=0.1,
    )
    assert loss(batch.embeddings, batch.labels).item() == pytest.approx(expected, rel=1e-9)


def test_equal_streams_draw_equal_subsets_and_the_next_step_draws_another():
    batch = random_batch(4, images=3, classes=200, dim=4)
    loss = loss_with_proxies("norm_softmax", batch.proxies, proxy_ratio=0.1)
    loss.reseed(torch.Generator().manual_seed(5))
    first, second = (loss(batch.embeddings, batch.labels) for _ in range(2))
    loss.reseed(torch.Generator().manual_seed(5))
    assert torch.equal(loss(batch.embeddings, batch.labels), first)
    assert not torch.equal(first, second)


def test_a_draw_leaves_the_global_random_state_alone():
    batch = random_batch(4, images=3, classes=200, dim=4)
    loss = loss_with_proxies("norm_softmax", batch.proxies, proxy_ratio=0.1)
    state = torch.get_rng_state()
    loss(batch.embeddings, batch.labels)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", PROXY_LOSSES)
def test_expected_gradient_points_the_way_of_the_full_one(name: str):
    batch = random_batch(6, images=16, classes=120, dim=8)
    # Soft knobs, as in early training; sharp ones make single proxies decide.
    knobs = {
        "proxy_nca": {"scale": 2.0},
        "proxy_anchor": {"alpha": 4.0},
        "norm_softmax": {"temperature": 0.25},
        "arcface": {"scale": 4.0},
    }[name]
    full = loss_with_proxies(name, batch.proxies, **knobs)
    part = loss_with_proxies(name, batch.proxies, proxy_ratio=0.25, **knobs)
    _, full_embeddings, full_proxies = gradients(full, batch.embeddings, batch.labels)
    draws = [gradients(part, batch.embeddings, batch.labels)[1:] for _ in range(200)]
    mean_embeddings = torch.stack([draw[0] for draw in draws]).mean(0)
    mean_proxies = torch.stack([draw[1] for draw in draws]).mean(0)
    assert functional.cosine_similarity(mean_embeddings.ravel(), full_embeddings.ravel(), 0) > 0.95
    assert functional.cosine_similarity(mean_proxies.ravel(), full_proxies.ravel(), 0) > 0.9


def test_sparse_gradients_hold_the_same_rows():
    batch = random_batch(7, images=5, classes=60, dim=4)
    loss = loss_with_proxies("norm_softmax", batch.proxies, proxy_ratio=0.2)
    dense = gradients(loss, batch.embeddings, batch.labels)[2]
    loss.reseed(torch.Generator().manual_seed(0))
    loss.sparse_gradient = True
    loss.proxies.grad = None
    loss(batch.embeddings, batch.labels).backward()
    assert loss.proxies.grad is not None
    assert loss.proxies.grad.is_sparse
    assert torch.equal(loss.proxies.grad.to_dense(), dense)


@pytest.mark.slow
def test_a_million_classes_cost_what_the_subset_costs():
    loss = build_loss("norm_softmax", num_classes=1_000_000, embedding_dim=16, proxy_ratio=0.001)
    embeddings = torch.randn(32, 16)
    labels = torch.randint(1_000_000, (32,))
    whole = torch.randperm(1_000_000)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        loss(embeddings, labels)
        times.append(time.perf_counter() - start)
    start = time.perf_counter()
    torch.randperm(1_000_000, out=whole)
    # A permutation of all classes alone takes longer than the whole step.
    assert min(times) < time.perf_counter() - start
