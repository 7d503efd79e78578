import pytest
import torch

from dml_core.data.prepared import open_development
from dml_core.measures import gradients
from dml_core.measures.gradients import gradient_curves, measure_gradients
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
