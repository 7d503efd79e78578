"""Tests of gradient magnitudes by hardness."""

import math

import numpy as np
import pytest
import torch

from dml_core.data.prepared import open_development
from dml_core.losses.registry import build_loss
from dml_core.measures import gradients
from dml_core.measures.gradients import (
    average_by_bin,
    cosine_similarities,
    gradient_curves,
    loss_of_similarities,
    measure_gradients,
    similarity_gradients,
)
from dml_core.measures.model_scores import load_trained_model
from dml_core.measures.results import list_winners


def curves_of(winners, arm):
    winner = next(winner for winner in list_winners(winners) if winner.arm == arm)
    checkpoint = winner.load()
    return gradient_curves(checkpoint, open_development(checkpoint.config.data))


def test_proxy_nca_pulls_alike_and_proxy_anchor_pulls_the_hard_ones(winners):
    alike = [size for _, size in curves_of(winners, "nca")["gradient.positive"]]
    assert alike == pytest.approx([1.0] * len(alike))
    anchor = curves_of(winners, "anchor")["gradient.positive"]
    assert [x for x, _ in anchor] == sorted(x for x, _ in anchor)
    assert anchor[-1][1] > 1 > anchor[0][1]


def test_negatives_push_more_the_nearer_they_are(winners):
    for arm in ("nca", "anchor"):
        curve = curves_of(winners, arm)["gradient.negative"]
        assert curve[-1][1] > 2 * curve[0][1]


def test_the_means_over_all_pairs_are_one(winners, monkeypatch):
    seen = []

    def watch(hardness, values):
        seen.append((hardness, values))
        return [(0.0, float(values.mean()))]

    monkeypatch.setattr(gradients, "average_by_bin", watch)
    found = curves_of(winners, "anchor")
    assert found == {
        "gradient.positive": [(0.0, pytest.approx(1))],
        "gradient.negative": [(0.0, pytest.approx(1))],
    }
    (positive, _), (negative, _) = seen
    # 48 training images of 6 classes in batches of 16: one positive and five negatives each.
    assert (len(positive), len(negative)) == (48, 240)
    assert (positive.min() >= -1e-9, positive.max() <= 2) == (True, True)


def test_weights_and_proxies_are_of_one_epoch(winners, monkeypatch):
    winner = list_winners(winners)[0]
    checkpoint = winner.load()
    states = []
    restore = gradients.restore_state
    monkeypatch.setattr(
        gradients,
        "restore_state",
        lambda state, saved: (restore(state, saved), states.append(state)),
    )
    gradient_curves(checkpoint, open_development(checkpoint.config.data))
    assert torch.equal(states[0].loss.proxies, checkpoint.loss["proxies"])
    trained = [name for name, _ in load_trained_model(checkpoint).named_parameters()]
    for name, value in states[0].model.named_parameters():
        assert name in trained
        assert torch.equal(value, checkpoint.model[name])


def test_a_study_has_curves_of_each_seed_and_none_without_proxies(winners):
    measured = measure_gradients(list_winners(winners))
    assert set(measured.curves) == {"gradient.positive", "gradient.negative"}
    for by_arm in measured.curves.values():
        assert {arm: set(by_seed) for arm, by_seed in by_arm.items()} == {
            "anchor": {0, 3},
            "nca": {0},
        }


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


def test_means_of_the_bins_with_enough_pairs_stand_at_their_middles():
    hardness = np.array([0.12, -0.03, 0.14, 0.19, 0.149, -0.01, 0.55])
    values = np.array([1.0, 10.0, 2.0, 50.0, 3.0, 20.0, 7.0])
    found = average_by_bin(hardness, values, width=0.05, min_pairs=2)
    assert found == [(-0.025, 15.0), (0.125, 2.0)]


def test_every_pair_counts_once():
    random = np.random.default_rng(0)
    hardness, values = random.uniform(-1, 2, 500), random.uniform(0, 1, 500)
    found = average_by_bin(hardness, values, width=0.1, min_pairs=1)
    for middle, mean in found:
        inside = values[(hardness >= middle - 0.05) & (hardness < middle + 0.05)]
        assert mean == pytest.approx(inside.mean())
    assert [middle for middle, _ in found] == sorted(middle for middle, _ in found)


def test_nothing_gives_nothing():
    assert average_by_bin(np.empty(0), np.empty(0)) == []
