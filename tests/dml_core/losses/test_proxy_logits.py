"""The comparison of a batch with proxies, against the same thing said in plain torch."""

import pytest
import torch
from torch.nn import functional

from dml_core.losses.proxies import compare_with_proxies
from tests.references.proxy_batches import random_batch


@pytest.mark.parametrize(("over", "axis"), [("images", 0), ("proxies", 1)])
def test_agrees_with_plain_torch(over: str, axis: int):
    batch = random_batch(1, images=9, classes=5, dim=4)
    logits = compare_with_proxies(
        batch.embeddings, batch.proxies, batch.labels, scale=3.0, over=over
    )
    cosines = functional.normalize(batch.embeddings) @ functional.normalize(batch.proxies).t()
    own = functional.one_hot(batch.labels, 5).bool()
    rest = (3 * cosines).masked_fill(own, -torch.inf).logsumexp(axis)
    torch.testing.assert_close(logits.target, 3 * cosines[own])
    torch.testing.assert_close(logits.rest, rest)
    torch.testing.assert_close(logits.mean_other, 3 * cosines[~own].mean())


@pytest.mark.parametrize("over", ["images", "proxies"])
def test_rest_is_far_below_every_logit_without_other_pairs(over: str):
    one = torch.ones(1, 2)
    logits = compare_with_proxies(one, one, torch.tensor([0]), scale=1000.0, over=over)
    assert logits.rest.item() == pytest.approx(-1e30)
    assert logits.mean_other == 0


def test_backward_twice_gives_the_same_gradient():
    batch = random_batch(2, images=4, classes=3, dim=4)
    leaf = batch.embeddings.requires_grad_()
    logits = compare_with_proxies(leaf, batch.proxies, batch.labels, scale=3.0, over="proxies")
    value = (logits.rest - logits.target).sum()
    (first,) = torch.autograd.grad(value, leaf, retain_graph=True)
    (second,) = torch.autograd.grad(value, leaf)
    assert first.any()
    assert torch.equal(first, second)
