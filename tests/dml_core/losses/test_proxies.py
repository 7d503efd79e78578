"""What holds for every proxy loss: gradients, edges, half precision, labels, diagnostics."""

import copy

import pytest
import torch

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
    with pytest.raises(ValueError, match=rf"from 0 to 1, since it has 2 proxies. Got {label}\."):
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
    with pytest.raises(ValueError, match=r"must be at least 1\. Got 0"):
        loss_with_proxies("norm_softmax", torch.zeros(shape))


def test_a_copied_loss_draws_as_the_original_would():
    batch = random_batch(11, images=3, classes=40, dim=4)
    loss = loss_with_proxies("norm_softmax", batch.proxies, proxy_ratio=0.2)
    twin = copy.deepcopy(loss)
    ours, theirs = (each(batch.embeddings, batch.labels) for each in (loss, twin))
    assert torch.equal(ours, theirs)
