import math

import pytest
import torch

from dml_core.losses.registry import build_loss
from dml_core.measures.gradients import (
    cosine_similarities,
    loss_of_similarities,
    similarity_gradients,
)

LOSSES = {
    "proxy_nca": {"scale": 2.0},
    "proxy_nca_softmax": {"scale": 2.0, "target_in_denominator": True},
    "proxy_anchor": {"alpha": 8.0, "delta": 0.1},
    "norm_softmax": {"temperature": 0.2},
    "arcface": {"margin": 0.2, "scale": 5.0},
}


def make_loss(name, *, num_classes=5, dim=4):
    torch.manual_seed(0)
    known = name.removesuffix("_softmax") if name.startswith("proxy_nca") else name
    return build_loss(known, num_classes=num_classes, embedding_dim=dim, **LOSSES[name]).double()


def make_batch():
    generator = torch.Generator().manual_seed(1)
    embeddings = torch.randn(7, 4, generator=generator, dtype=torch.float64)
    return embeddings, torch.tensor([0, 0, 0, 1, 1, 3, 4])


@pytest.mark.parametrize("name", LOSSES)
def test_the_loss_of_the_similarities_is_the_loss_itself(name):
    loss, (embeddings, labels) = make_loss(name), make_batch()
    similarities = cosine_similarities(embeddings, loss.proxies.detach())
    found = loss_of_similarities(loss, similarities, labels)
    assert found.item() == pytest.approx(loss(embeddings, labels).item(), rel=1e-9)


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_finite_differences(name):
    loss, (embeddings, labels) = make_loss(name), make_batch()
    similarities = cosine_similarities(embeddings, loss.proxies.detach())
    found = similarity_gradients(loss, similarities, labels)
    step = 1e-6
    for row in range(7):
        for column in range(5):
            values = []
            for sign in (1, -1):
                moved = similarities.clone()
                moved[row, column] += sign * step
                values.append(loss_of_similarities(loss, moved, labels).item())
            slope = (values[0] - values[1]) / (2 * step)
            assert found[row, column].item() == pytest.approx(slope, abs=1e-7)


@pytest.mark.parametrize("name", LOSSES)
def test_own_proxies_pull_and_others_push(name):
    loss, (embeddings, labels) = make_loss(name), make_batch()
    similarities = cosine_similarities(embeddings, loss.proxies.detach())
    gradients = similarity_gradients(loss, similarities, labels)
    is_own = torch.nn.functional.one_hot(labels, 5).bool()
    assert (gradients[is_own] < 0).all()
    assert (gradients[~is_own] > 0).all()


def test_proxy_nca_pulls_every_sample_alike():
    # Two images of class 0; the paper's formula: dL/ds = -2 scale / B for each own proxy.
    loss = make_loss("proxy_nca", num_classes=2)
    similarities = torch.tensor([[0.9, 0.3], [0.2, 0.1]], dtype=torch.float64)
    gradients = similarity_gradients(loss, similarities, torch.tensor([0, 0]))
    # With one other proxy the push is that of the pull.
    wanted = torch.tensor([[-2.0, 2.0], [-2.0, 2.0]], dtype=torch.float64)
    torch.testing.assert_close(gradients, wanted)


def test_proxy_anchor_pulls_the_harder_sample_more_and_less_when_another_is_harder_still():
    loss = make_loss("proxy_anchor", num_classes=2)

    def pulls(first, second):
        similarities = torch.tensor([[first, 0.0], [second, 0.0]], dtype=torch.float64)
        return similarity_gradients(loss, similarities, torch.tensor([0, 0]))[:, 0].tolist()

    # Worked by hand: h = e^(-8 (s - 0.1)), dL/ds = -8 h / (1 + h_1 + h_2), one proxy has images.
    hard, easy = math.exp(-8 * (0.2 - 0.1)), math.exp(-8 * (0.9 - 0.1))
    total = 1 + hard + easy
    assert pulls(0.2, 0.9) == pytest.approx([-8 * hard / total, -8 * easy / total])
    # The same sample beside a harder one moves less: its hardness is relative.
    assert abs(pulls(0.2, -0.5)[0]) < abs(pulls(0.2, 0.9)[0])
