"""A loss summed over prefixes of the embedding."""

import math

import pytest
import torch

from dml_core.config import ConfigError, resolve_trial_config
from dml_core.losses import LOSSES, NormSoftmaxLoss, ProxyAnchorLoss, TripletLoss, build_loss
from dml_core.losses.base import MetricLoss
from dml_core.losses.proxies import ProxyLoss
from tests.references import pair_losses, proxy_losses

CLASSES, DIM, LENGTHS = 5, 6, [2, 3, 6]


def make_batch(loss: MetricLoss) -> tuple[torch.Tensor, torch.Tensor]:
    stream = torch.Generator().manual_seed(0)
    embeddings = torch.randn(15, DIM, generator=stream, dtype=torch.float64)
    if loss.uses_continuous_labels:
        return embeddings, torch.randn(15, 1, generator=stream, dtype=torch.float64)
    return embeddings, torch.arange(15) % CLASSES


def build(name: str, **knobs: object) -> MetricLoss:
    torch.manual_seed(1)
    return build_loss(name, num_classes=CLASSES, embedding_dim=DIM, **knobs).double()


def test_a_worked_example():
    loss = NormSoftmaxLoss(num_classes=2, embedding_dim=2, temperature=1, matryoshka=[1, 2])
    with torch.no_grad():
        loss.proxies.copy_(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
    value = loss(torch.tensor([[3.0, 4.0]]), torch.tensor([0]))
    # One dimension: cosines 1 and -1. Both dimensions: 3/5 and -3/5.
    expected = math.log(1 + math.exp(-2)) + math.log(1 + math.exp(-6 / 5))
    assert value.item() == pytest.approx(expected)
    assert expected == pytest.approx(0.390210, abs=1e-6)


def test_proxies_are_cut_and_normalized_with_the_embeddings():
    loss = build("proxy_anchor", alpha=8.0, matryoshka=LENGTHS)
    assert isinstance(loss, ProxyLoss)
    embeddings, labels = make_batch(loss)
    expected = sum(
        proxy_losses.proxy_anchor(
            embeddings[:, :length].tolist(), labels.tolist(), loss.proxies[:, :length].tolist(),
            alpha=8.0, delta=0.1,
        )
        for length in LENGTHS
    )  # fmt: skip
    assert loss(embeddings, labels).item() == pytest.approx(expected)


def test_a_pair_loss_normalizes_each_prefix():
    loss = TripletLoss(mining="all", matryoshka=LENGTHS)
    embeddings, labels = make_batch(loss)
    expected = sum(
        pair_losses.triplet(embeddings[:, :length], labels, margin=0.2, mining="all")
        for length in LENGTHS
    )
    assert loss(embeddings, labels).item() == pytest.approx(expected)


@pytest.mark.parametrize("name", [*LOSSES, "pml:TripletMarginLoss"])
def test_one_full_length_has_the_bits_of_the_plain_loss(name: str):
    results = []
    for knobs in ({}, {"matryoshka": [DIM]}):
        loss = build(name, **knobs)
        embeddings, labels = make_batch(loss)
        value = loss(embeddings.requires_grad_(), labels)
        value.backward()
        results.append((value, embeddings.grad, [p.grad for p in loss.parameters()]))
    (value, gradient, of_proxies), (cut_value, cut_gradient, cut_of_proxies) = results
    assert torch.equal(value, cut_value)
    assert torch.equal(gradient, cut_gradient)
    assert all(map(torch.equal, of_proxies, cut_of_proxies))


@pytest.mark.parametrize("proxy_ratio", [1.0, 0.8])
def test_proxies_get_the_gradient_of_finite_differences(proxy_ratio: float):
    loss = build("proxy_nca", scale=2.0, matryoshka=LENGTHS, proxy_ratio=proxy_ratio)
    embeddings, labels = make_batch(loss)
    few = labels < 3

    def value(proxies: torch.Tensor) -> torch.Tensor:
        loss.reseed(torch.Generator().manual_seed(1))
        inputs = (embeddings[few], labels[few])
        return torch.func.functional_call(loss, {"proxies": proxies}, inputs)

    assert torch.autograd.gradcheck(value, (loss.proxies.detach().requires_grad_(),))


def test_a_sampled_proxy_has_one_row_of_the_sparse_gradient():
    loss = ProxyAnchorLoss(
        num_classes=CLASSES, embedding_dim=DIM, proxy_ratio=0.6, matryoshka=LENGTHS
    )
    loss.sparse_gradient = True
    labels = torch.tensor([0, 0, 1])
    loss(torch.randn(3, DIM), labels).backward()
    rows = loss.proxies.grad._indices()[0]
    assert len(rows) == len(rows.unique()) == 3


def test_diagnostics_are_those_of_the_whole_embedding():
    plain, cut = build("triplet"), build("triplet", matryoshka=LENGTHS)
    batch = make_batch(plain)
    plain(*batch), cut(*batch)
    assert plain.diagnostics == cut.diagnostics


def test_a_foreign_loss_with_parameters_has_one_instance_for_each_length():
    loss = build("pml:ProxyAnchorLoss", matryoshka=LENGTHS)
    shapes = sorted(tuple(p.shape) for p in loss.parameters())
    assert shapes == [(CLASSES, length) for length in LENGTHS]
    embeddings, labels = make_batch(loss)
    parts = [*loss.shorter.values(), loss.loss]
    expected = sum(part(embeddings[:, :n], labels) for part, n in zip(parts, LENGTHS, strict=True))
    torch.testing.assert_close(loss(embeddings, labels), expected)


def test_lengths_that_leave_dimensions_untrained_are_refused():
    with pytest.raises(ValueError, match=r"must end with 6, the length of an embedding.*\[2, 4\]"):
        build("proxy_anchor", matryoshka=[2, 4])
    with pytest.raises(ValueError, match=r"TripletLoss must end with 6"):
        TripletLoss(matryoshka=[2, 4])(torch.randn(4, 6), torch.tensor([0, 0, 1, 1]))


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ({"loss.matryoshka": [64, 32, 128]}, r"loss.matryoshka must list each length once, the"),
        ({"loss.matryoshka": [64, 64, 128]}, r"Got \[64, 64, 128\]"),
        ({"loss.matryoshka": [0, 128]}, r"loss.matryoshka.0 must be >= 1. Got 0"),
        ({"loss.matryoshka": [32, 64]}, r"must end with model.embedding_dim=128.*Got \[32, 64\]"),
        ({"evaluation.truncate_at": [64, 256]}, r"up to model.embedding_dim=128.*Got 256"),
    ],
)  # fmt: skip
def test_a_configuration_with_impossible_lengths_is_refused(layer: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        resolve_trial_config(layer)


def test_a_prefix_is_compared_with_the_prefixes_of_the_memory():
    past, embeddings = torch.randn(2, 15, DIM, dtype=torch.float64).unbind()
    labels = torch.arange(15) % CLASSES
    loss = build("contrastive", memory={"size": 20}, matryoshka=LENGTHS)
    loss.remember(past, labels)
    expected = torch.zeros((), dtype=torch.float64)
    for length in LENGTHS:
        plain = build("contrastive", memory={"size": 20})
        plain.remember(past[:, :length], labels)
        expected += plain(embeddings[:, :length], labels)
    torch.testing.assert_close(loss(embeddings, labels), expected)


def test_a_foreign_memory_is_refused():
    options = {"loss": "ContrastiveLoss", "memory_size": 8}
    with pytest.raises(ConfigError, match=r"cannot cut the memory .*Got \[2, 3, 6\]"):
        build("pml:CrossBatchMemory", options=options, matryoshka=LENGTHS)
