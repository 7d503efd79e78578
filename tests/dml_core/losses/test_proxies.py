"""Tests of what proxy losses share."""

import copy
import math
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from dml_core.losses.proxies import (
    compare_with_proxies,
    draw_proxy_subset,
    grouped_log_one_plus_sum_exp,
    log_one_plus_exp,
)
from dml_core.losses.registry import build_loss
from tests.references import proxy_losses
from tests.references.proxy_batches import (
    at_angles,
    gradients,
    loss_with_proxies,
    random_batch,
)

PROXY_LOSSES = ["proxy_nca", "proxy_anchor", "norm_softmax", "arcface"]
EXTREME_KNOBS = [
    ("proxy_nca", {"scale": 1000.0}),
    ("proxy_nca", {"scale": 1000.0, "target_in_denominator": True}),
    ("proxy_anchor", {"alpha": 64.0, "delta": 0.4}),
    ("proxy_anchor", {"alpha": 1000.0, "delta": 1.0}),
    ("norm_softmax", {"temperature": 0.001}),
    ("arcface", {"scale": 1000.0, "margin": 0.5}),
]


@pytest.mark.parametrize("proxy_ratio", [1.0, 0.5])
@pytest.mark.parametrize("name", PROXY_LOSSES)
def test_gradient_agrees_with_finite_differences(name: str, proxy_ratio: float):
    batch = random_batch(7, images=6, classes=8, dim=3)
    loss = loss_with_proxies(name, batch.proxies, proxy_ratio=proxy_ratio)

    def value(embeddings, proxies):
        loss.reseed(torch.Generator().manual_seed(1))
        parameters = {"proxies": proxies}
        return torch.func.functional_call(loss, parameters, (embeddings, batch.labels))

    inputs = (batch.embeddings.requires_grad_(), batch.proxies.requires_grad_())
    assert torch.autograd.gradcheck(value, inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("name", "knobs"), EXTREME_KNOBS)
def test_extreme_knobs_stay_finite(name: str, knobs: dict[str, float], dtype: torch.dtype):
    stream = torch.Generator().manual_seed(0)
    proxies = torch.randn(11_318, 16, generator=stream)
    labels = torch.randint(11_318, (12,), generator=stream)
    embeddings = torch.randn(12, 16, generator=stream)
    embeddings[0] = 0
    embeddings[1] = proxies[labels[1]]
    embeddings[2] = -proxies[labels[2]]
    embeddings[3] = 1e-7
    embeddings[4] = 6e4
    loss = loss_with_proxies(name, proxies, **knobs)
    with torch.no_grad():
        loss.proxies[labels[5]] = 0
    value, by_embeddings, by_proxies = gradients(loss, embeddings.to(dtype), labels)
    assert value.dtype == torch.float32
    assert value.isfinite()
    assert by_embeddings.dtype == dtype
    assert by_embeddings.isfinite().all()
    assert by_proxies.isfinite().all()
    assert by_embeddings[2].any()
    assert not by_embeddings[0].any()


@pytest.mark.parametrize("name", PROXY_LOSSES)
def test_half_precision_agrees_with_float32_of_the_same_numbers(name: str):
    batch = random_batch(8, images=10, classes=6, dim=8)
    loss = loss_with_proxies(name, batch.proxies.float())
    embeddings = batch.embeddings.half()
    assert torch.equal(loss(embeddings, batch.labels), loss(embeddings.float(), batch.labels))


@pytest.mark.parametrize("name", PROXY_LOSSES)
def test_autocast_does_not_lower_the_precision(name: str):
    batch = random_batch(9, images=10, classes=6, dim=8)
    loss = loss_with_proxies(name, batch.proxies.float())
    plain = gradients(loss, batch.embeddings.float(), batch.labels)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under = gradients(loss, batch.embeddings.float(), batch.labels)
    assert all(torch.equal(a, b) for a, b in zip(plain, under, strict=True))


@pytest.mark.parametrize("name", PROXY_LOSSES)
def test_length_of_embeddings_and_proxies_does_not_matter(name: str):
    batch = random_batch(10, images=10, classes=6, dim=8)
    loss = loss_with_proxies(name, batch.proxies)
    longer = loss_with_proxies(name, 7 * batch.proxies)
    expected = loss(batch.embeddings, batch.labels)
    torch.testing.assert_close(longer(0.2 * batch.embeddings, batch.labels), expected)


@pytest.mark.parametrize("name", PROXY_LOSSES)
def test_one_image_and_one_class_backpropagate(name: str):
    for proxies in (at_angles(0), at_angles(0, 90)):
        loss = loss_with_proxies(name, proxies)
        value, by_embeddings, by_proxies = gradients(loss, at_angles(50), torch.tensor([0]))
        assert value.isfinite()
        assert by_embeddings.isfinite().all()
        assert by_proxies.isfinite().all()


@pytest.mark.parametrize("name", PROXY_LOSSES)
def test_an_empty_batch_gives_a_zero_that_backpropagates(name: str):
    embeddings = torch.zeros(0, 2, requires_grad=True)
    loss = loss_with_proxies(name, at_angles(0, 90))
    value = loss(embeddings, torch.zeros(0, dtype=torch.int64))
    value.backward()
    assert value == 0
    assert embeddings.grad is not None


@pytest.mark.parametrize("name", PROXY_LOSSES)
def test_not_a_number_is_never_hidden(name: str):
    loss = loss_with_proxies(name, at_angles(0, 90))
    assert loss(torch.full((2, 2), float("nan")), torch.tensor([0, 1])).isnan()


@pytest.mark.parametrize("name", PROXY_LOSSES)
def test_diagnostics_are_detached_mean_cosines(name: str):
    # Own proxies at 0 and 60 degrees from their images: (1 + 0.5) / 2.
    # Others: image at 0 with proxy at 90, image at 30 with proxy at 0: (0 + 0.866025) / 2.
    loss = loss_with_proxies(name, at_angles(0, 90))
    loss(at_angles(0, 30).requires_grad_(), torch.tensor([0, 1]))
    seen = loss.diagnostics
    assert seen["positive_similarity"].item() == pytest.approx(0.75)
    assert seen["negative_similarity"].item() == pytest.approx(0.4330127)
    assert 0 <= seen["active_fraction"] <= 1
    assert not any(value.requires_grad or value.ndim for value in seen.values())


@pytest.mark.parametrize("label", [-1, 2])
@pytest.mark.parametrize("name", PROXY_LOSSES)
def test_a_label_without_a_proxy_is_refused(name: str, label: int):
    loss = loss_with_proxies(name, at_angles(0, 90))
    with pytest.raises(ValueError, match=rf"from 0 to 1, because it has 2 proxies. Got {label}\."):
        loss(at_angles(0, 90), torch.tensor([0, label]))


def test_wrong_shapes_and_dtypes_are_refused():
    loss = loss_with_proxies("proxy_anchor", at_angles(0, 90))
    with pytest.raises(ValueError, match=r"must be \(B, 2\).*Got \(1, 3\)"):
        loss(torch.zeros(1, 3), torch.tensor([0]))
    with pytest.raises(ValueError, match=r"must be \(1,\) int64.*Got \(2,\)"):
        loss(at_angles(0), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match=r"int64.*Got \(1,\) torch.float32"):
        loss(at_angles(0), torch.tensor([0.0]))


@pytest.mark.parametrize("shape", [(0, 4), (4, 0)])
def test_a_loss_without_proxies_is_refused(shape: tuple[int, int]):
    with pytest.raises(ValueError, match=r"must be >= 1\. Got 0"):
        loss_with_proxies("norm_softmax", torch.zeros(shape))


def test_a_copied_loss_draws_as_the_original_would():
    batch = random_batch(11, images=3, classes=40, dim=4)
    loss = loss_with_proxies("norm_softmax", batch.proxies, proxy_ratio=0.2)
    twin = copy.deepcopy(loss)
    ours, theirs = (each(batch.embeddings, batch.labels) for each in (loss, twin))
    assert torch.equal(ours, theirs)


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


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 60), st.integers(1, 70), st.integers(1, 12), st.integers(0, 2**31))
def test_subset_is_distinct_holds_the_batch_and_finds_it(
    num_classes: int, size: int, images: int, seed: int
):
    stream = torch.Generator().manual_seed(seed)
    labels = torch.randint(num_classes, (images,), generator=stream)
    subset = draw_proxy_subset(labels, num_classes=num_classes, size=size, generator=stream)
    num_present = labels.unique().numel()
    assert subset.classes.numel() == max(num_present, min(size, num_classes))
    assert subset.classes.unique().numel() == subset.classes.numel()
    assert subset.classes.min() >= 0
    assert subset.classes.max() < num_classes
    assert torch.equal(subset.classes[subset.targets], labels)


@pytest.mark.parametrize("size", [6, 20])
def test_every_absent_class_is_drawn_equally_often(size: int):
    # 36 absent classes of 40 with 4 present: each drawn with chance (size - 4) / 36; six
    # standard deviations of a binomial count. Size 6 draws by rejection, 20 by permutation.
    stream = torch.Generator().manual_seed(0)
    labels = torch.tensor([0, 7, 7, 39, 20])
    counts = torch.zeros(40)
    for _ in range(3000):
        subset = draw_proxy_subset(labels, num_classes=40, size=size, generator=stream)
        counts[subset.classes] += 1
    is_present = torch.zeros(40, dtype=torch.bool).index_fill(0, labels, True)
    chance = (size - 4) / 36
    tolerance = 6 * (3000 * chance * (1 - chance)) ** 0.5
    assert (counts[is_present] == 3000).all()
    assert (counts[~is_present] - 3000 * chance).abs().max() < tolerance


@pytest.mark.parametrize("value", [-1e30, -745.0, -30.0, 0.0, 25.0, 39.9, 40.1, 1e4])
def test_log_one_plus_exp_is_precise_in_float64(value: float):
    expected = value if value > 700 else math.log1p(math.exp(value))
    got = log_one_plus_exp(torch.tensor(value, dtype=torch.float64)).item()
    assert got == pytest.approx(expected, rel=1e-15, abs=0)


def test_groups_are_summed_apart_and_an_empty_one_gives_zero():
    # Group 0: log(1 + e^0 + e^1); group 1 empty; group 2: log(1 + e^-2).
    values = torch.tensor([0.0, -2.0, 1.0], dtype=torch.float64)
    got = grouped_log_one_plus_sum_exp(values, torch.tensor([0, 2, 0]), num_groups=3)
    expected = [math.log(2 + math.e), 0.0, math.log1p(math.exp(-2))]
    assert got.tolist() == pytest.approx(expected, rel=1e-12)


def test_extreme_values_stay_finite_with_a_softmax_gradient():
    values = torch.tensor([1e4, -1e4, 1e4], requires_grad=True)
    got = grouped_log_one_plus_sum_exp(values, torch.tensor([0, 1, 0]), num_groups=2)
    got.sum().backward()
    assert got.tolist() == pytest.approx([1e4 + math.log(2), 0.0])
    assert values.grad is not None
    assert values.grad.tolist() == pytest.approx([0.5, 0.0, 0.5])
