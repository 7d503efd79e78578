"""What holds for every loss of the registry; registering a loss enrols it here."""

from itertools import pairwise
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from dml_core.config.losses import ExpandableLossBase, LossConfig, MemoryLossBase
from dml_core.losses.base import MetricLoss
from dml_core.losses.proxies import ProxyLoss
from dml_core.losses.registry import LOSSES, build_loss

NUM_CLASSES, DIM = 4, 5
KINDS = [get_args(tagged)[0] for tagged in get_args(get_args(LossConfig)[0])]


def named(base: type) -> list[str]:
    """Returns the losses whose knobs are of a kind."""
    return [kind.model_fields["name"].default for kind in KINDS if issubclass(kind, base)]


VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in LOSSES),
    *((name, {"expansion": {"points": 2}}) for name in named(ExpandableLossBase)),
    *((name, {"memory": {"size": 20}}) for name in named(MemoryLossBase)),
    ("triplet", {"mining": "all"}),
    ("triplet", {"mining": "hard"}),
    ("n_pair", {"normalize": False, "scale": 1.0, "l2_weight": 0.02}),
    ("multi_similarity", {"mining_epsilon": None}),
    ("proxy_nca", {"target_in_denominator": True}),
    *((name, {"matryoshka": [2, DIM]}) for name in LOSSES),
]
every_variant = pytest.mark.parametrize(("name", "knobs"), VARIANTS, ids=str)


def build(name: str, knobs: dict[str, Any], *, seed: int = 0) -> MetricLoss:
    """Returns the loss in double; a memory holds embeddings of all four classes."""
    torch.manual_seed(seed)
    loss = build_loss(name, num_classes=NUM_CLASSES, embedding_dim=DIM, **knobs).double()
    stream = torch.Generator().manual_seed(seed + 50)
    past = torch.randn(20, DIM, generator=stream, dtype=torch.float64)
    loss.remember(past, torch.arange(20) % NUM_CLASSES)
    return loss


def make_batch(loss: MetricLoss, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Four images of each of three classes in mixed order; the fourth class is absent."""
    stream = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(12, DIM, generator=stream, dtype=torch.float64)
    if loss.uses_continuous_labels:
        return embeddings, torch.randn(12, 2, generator=stream, dtype=torch.float64)
    labels = torch.tensor([0, 1, 3]).repeat(4)
    return embeddings, labels[torch.randperm(12, generator=stream)]


def rotation(size: int) -> Tensor:
    stream = torch.Generator().manual_seed(5)
    return torch.linalg.qr(torch.randn(size, size, generator=stream, dtype=torch.float64))[0]


def rotation_within(lengths: list[int]) -> Tensor:
    """Turns each part between two lengths by itself, which leaves the lengths of prefixes alone."""
    sizes = [length - before for before, length in pairwise([0, *lengths])]
    return torch.block_diag(*(rotation(size) for size in sizes))


def order_that_keeps_each_class(labels: Tensor) -> Tensor:
    """A mixed order in which the images of a class follow each other as before.

    N-pair and expansion pair the images of a class in batch order, so that only such an order
    leaves their pairs alone.
    """
    order = torch.randperm(labels.numel(), generator=torch.Generator().manual_seed(3))
    for label in labels.unique():
        places = (labels[order] == label).nonzero().squeeze(1)
        order[places] = order[places].sort().values
    return order


def backward(loss: MetricLoss, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    leaf = embeddings.detach().clone().requires_grad_()
    value = loss(leaf, labels)
    value.backward()
    assert leaf.grad is not None
    return value.detach(), leaf.grad


def assert_equal_up_to_rounding(left: Tensor, right: Tensor) -> None:
    torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-11)


@every_variant
def test_an_ordinary_batch_is_learned_from(name: str, knobs: dict[str, Any]):
    loss = build(name, knobs)
    value, gradient = backward(loss, *make_batch(loss))
    assert value.shape == ()
    assert value != 0
    assert gradient.isfinite().all()
    assert gradient.abs().sum() > 1e-6


@every_variant
def test_batch_order_does_not_matter(name: str, knobs: dict[str, Any]):
    loss = build(name, knobs)
    embeddings, labels = make_batch(loss)
    if loss.uses_continuous_labels:
        order = torch.randperm(12, generator=torch.Generator().manual_seed(3))
    else:
        order = order_that_keeps_each_class(labels)
    assert not torch.equal(order, torch.arange(12))
    value, gradient = backward(loss, embeddings, labels)
    moved_value, moved_gradient = backward(loss, embeddings[order], labels[order])
    assert_equal_up_to_rounding(moved_value, value)
    assert_equal_up_to_rounding(moved_gradient, gradient[order])


@pytest.mark.parametrize("name", sorted({*LOSSES} - {"n_pair"}))
def test_order_within_a_class_does_not_matter_without_pairing(name: str):
    loss = build(name, {})
    embeddings, labels = make_batch(loss)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(4))
    assert_equal_up_to_rounding(loss(embeddings[order], labels[order]), loss(embeddings, labels))


@every_variant
def test_names_of_the_classes_do_not_matter(name: str, knobs: dict[str, Any]):
    loss = build(name, knobs)
    embeddings, labels = make_batch(loss)
    expected = loss(embeddings, labels).detach()
    if loss.uses_continuous_labels:
        renamed = (labels + 3.0) @ rotation(2)
    else:
        new_name = torch.tensor([2, 0, 3, 1])
        renamed = new_name[labels]
        if isinstance(loss, ProxyLoss):
            with torch.no_grad():
                loss.proxies[new_name] = loss.proxies.clone()
        if memory := getattr(loss, "memory", None):
            memory.labels = new_name[memory.labels]
    assert not torch.equal(renamed, labels)
    assert_equal_up_to_rounding(loss(embeddings, renamed), expected)


@every_variant
def test_rotation_does_not_matter(name: str, knobs: dict[str, Any]):
    loss = build(name, knobs)
    embeddings, labels = make_batch(loss)
    turn = rotation_within(knobs.get("matryoshka", [DIM]))
    value, gradient = backward(loss, embeddings, labels)
    if isinstance(loss, ProxyLoss):
        with torch.no_grad():
            loss.proxies.copy_(loss.proxies @ turn)
    if memory := getattr(loss, "memory", None):
        memory.embeddings = memory.embeddings @ turn
    turned_value, turned_gradient = backward(loss, embeddings @ turn, labels)
    assert_equal_up_to_rounding(turned_value, value)
    assert_equal_up_to_rounding(turned_gradient, gradient @ turn)


@every_variant
def test_equal_seeds_give_equal_bits(name: str, knobs: dict[str, Any]):
    first, second = build(name, knobs, seed=1), build(name, knobs, seed=1)
    batch = make_batch(first)
    results = [backward(loss, *batch) for loss in (first, second, first)]
    assert all(torch.equal(value, results[0][0]) for value, _ in results)
    assert all(torch.equal(gradient, results[0][1]) for _, gradient in results)


@every_variant
def test_state_dict_carries_the_loss(name: str, knobs: dict[str, Any]):
    first, second = build(name, knobs, seed=1), build(name, knobs, seed=2)
    batch = make_batch(first)
    second.load_state_dict(first.state_dict())
    assert torch.equal(second(*batch), first(*batch))


@every_variant
def test_gradient_agrees_with_finite_differences(name: str, knobs: dict[str, Any]):
    loss = build(name, knobs)
    embeddings, labels = make_batch(loss, seed=1)
    leaf = embeddings.requires_grad_()
    assert torch.autograd.gradcheck(lambda inputs: loss(inputs, labels), (leaf,), fast_mode=True)


@every_variant
@pytest.mark.parametrize("kind", ["all different", "all equal", "one image", "two images"])
def test_a_batch_without_a_valid_pair_backpropagates(name: str, knobs: dict[str, Any], kind: str):
    loss = build(name, knobs)
    embeddings = torch.randn(NUM_CLASSES, DIM, dtype=torch.float64)
    labels = torch.arange(NUM_CLASSES)
    if kind == "all equal":
        labels = torch.zeros_like(labels)
    if loss.uses_continuous_labels:
        labels = labels.double().unsqueeze(1)
    size = {"one image": 1, "two images": 2}.get(kind, NUM_CLASSES)
    value, gradient = backward(loss, embeddings[:size], labels[:size])
    assert value.isfinite()
    assert gradient.isfinite().all()


@every_variant
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_awkward_vectors_stay_finite_in_every_precision(
    name: str, knobs: dict[str, Any], dtype: torch.dtype
):
    loss = build(name, knobs).float()
    embeddings, labels = make_batch(loss)
    embeddings[0] = 0
    embeddings[1] = embeddings[2]
    embeddings[3] = -embeddings[4]
    value, gradient = backward(loss, embeddings.to(dtype), labels)
    assert value.isfinite()
    assert value.dtype == torch.float32
    assert gradient.dtype == dtype
    assert gradient.isfinite().all()


@every_variant
def test_diagnostics_hold_no_graph_and_fractions_are_fractions(name: str, knobs: dict[str, Any]):
    loss = build(name, knobs)
    embeddings, labels = make_batch(loss)
    loss(embeddings.requires_grad_(), labels)
    assert loss.diagnostics
    assert not any(value.requires_grad for value in loss.diagnostics.values())
    fractions = [value for key, value in loss.diagnostics.items() if key.endswith("_fraction")]
    assert all(0 <= value <= 1 for value in fractions)
