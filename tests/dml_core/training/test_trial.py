"""Tests of a training from its first epoch to its last."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dml_core.data.prepared import open_development
from dml_core.evaluation.clustering import smallest_class_distances
from dml_core.losses.registry import LOSSES
from dml_core.measures.model_scores import embed_with_checkpoint
from dml_core.training.checkpoint import load_checkpoint, load_newest_checkpoint, save_checkpoint
from dml_core.training.in_folder import train_in_folder
from dml_core.training.state import describe_maker
from dml_core.training.trial import run_trial
from dml_core.trials import key
from dml_core.trials.journal import read_epochs
from tests.references.tiny_trials import tiny_config


def train(config, tmp_path, *, resume_from=None, stop_after=None):
    """Runs a trial; returns the result and the path of each epoch's checkpoint."""
    paths = {}

    def keep(report, checkpoint):
        paths[report.epoch] = tmp_path / f"{report.epoch}.pt"
        save_checkpoint(checkpoint, paths[report.epoch])
        return report.epoch != stop_after

    data = open_development(config.data)
    result = run_trial(config, data, on_epoch_end=keep, resume_from=resume_from)
    return result, paths


def assert_same_bits(first, second):
    assert first.keys() == second.keys()
    for name, value in first.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, second[name]), name
        elif isinstance(value, dict):
            assert_same_bits(value, second[name])
        else:
            assert value == second[name], name


def assert_same_checkpoints(first, second):
    one, other = load_checkpoint(first), load_checkpoint(second)
    for part in ("model", "loss", "optimizer", "best_model"):
        assert_same_bits(getattr(one, part), getattr(other, part))
    assert (one.best_epoch, one.best_score) == (other.best_epoch, other.best_score)


def deterministic_numbers(result):
    return [(r.epoch, r.train_loss, r.diagnostics, r.validation) for r in result.reports]


def test_each_epoch_has_a_report_and_a_checkpoint(tiny_root, tmp_path):
    config = tiny_config(tiny_root)
    result, paths = train(config, tmp_path)
    assert result.outcome == "finished"
    assert [report.epoch for report in result.reports] == [1, 2, 3]
    assert sorted(paths) == [1, 2, 3]
    last = result.reports[-1]
    assert 0 <= last.validation["recall_at_1"] <= 1
    assert last.active_fraction is not None
    assert last.images_per_second > 0
    assert last.peak_memory_mib > 50
    assert set(last.learning_rates) == {"trunk", "head", "proxies"}
    # The proxies learn ten times as fast as the head.
    assert last.learning_rates["proxies"] == pytest.approx(10 * last.learning_rates["head"])


def test_training_lowers_the_loss(tiny_root, tmp_path):
    result, _ = train(tiny_config(tiny_root, training__epochs=8), tmp_path)
    assert result.reports[-1].train_loss < 0.8 * result.reports[0].train_loss


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_same_seed_gives_the_same_bits_with_any_number_of_workers(tiny_root, tmp_path, workers):
    (tmp_path / "one").mkdir()
    config = tiny_config(tiny_root, training__epochs=2, augmentation__flip="image")
    again = tiny_config(
        tiny_root, training__epochs=2, augmentation__flip="image", training__loader_workers=workers
    )
    first, first_paths = train(config, tmp_path / "one")
    second, second_paths = train(again, tmp_path)
    assert_same_checkpoints(first_paths[2], second_paths[2])
    assert deterministic_numbers(first) == deterministic_numbers(second)


def test_another_seed_gives_other_bits(tiny_root, tmp_path):
    first, _ = train(tiny_config(tiny_root), tmp_path)
    second, _ = train(tiny_config(tiny_root, seed=1), tmp_path)
    assert deterministic_numbers(first) != deterministic_numbers(second)


@pytest.mark.parametrize(
    "knobs",
    [
        {},
        {"optimizer__name": "sgd", "schedule__name": "step", "schedule__epochs": 1},
        {"training__warmup_epochs": 1, "training__new_optimizer_after_warmup": True},
        {"loss__proxy_ratio": 0.5, "training__gradient_clip": "norm"},
        {"loss__name": "triplet", "loss__expansion__points": 2},
        {"loss__name": "contrastive", "loss__memory__size": 150, "loss__memory__start_epoch": 1},
        {"loss__matryoshka": [2, 4, 8], "loss__proxy_ratio": 0.5},
        {"trunk__train": "lora", "trunk__lora__rank": 2, "training__warmup_epochs": 1},
        {"sampler__name": "shuffled", "training__precision": "bfloat16"},
    ],
    ids=lambda knobs: next(reversed(knobs), "defaults"),
)
@pytest.mark.parametrize("stop_after", [1, 2])
def test_a_resumed_trial_has_the_bits_of_an_uninterrupted_one(
    tiny_root, tmp_path, knobs, stop_after
):
    (tmp_path / "broken").mkdir()
    config = tiny_config(tiny_root, **knobs)
    whole, whole_paths = train(config, tmp_path)
    stopped, paths = train(config, tmp_path / "broken", stop_after=stop_after)
    assert stopped.outcome == "stopped"
    checkpoint = load_checkpoint(paths[stop_after])
    resumed, paths = train(config, tmp_path / "broken", resume_from=checkpoint)
    assert_same_checkpoints(whole_paths[3], paths[3])
    assert deterministic_numbers(stopped) + deterministic_numbers(resumed) == deterministic_numbers(
        whole
    )


@pytest.mark.parametrize(
    ("made", "then"),
    [("hash_training_code", "training code"), ("read_libraries", "torch"), ("device", "device")],
)
def test_resuming_with_other_code_libraries_or_device_is_refused(
    tiny_root, tmp_path, monkeypatch, made, then
):
    config = tiny_config(tiny_root)
    _, paths = train(config, tmp_path, stop_after=1)
    checkpoint = load_checkpoint(paths[1])
    assert checkpoint.made_with == describe_maker(config, torch.device("cpu"))
    libraries = key.read_libraries()
    others = {
        "hash_training_code": ("hash_training_code", lambda: "other"),
        "read_libraries": ("read_libraries", lambda: {**libraries, "torch": "other"}),
        "device": ("describe_device", lambda device: "other"),
    }
    name, other = others[made]
    with monkeypatch.context() as patched:
        patched.setattr(key, name, other)
        with pytest.raises(ValueError, match="resumes only with") as refusal:
            train(config, tmp_path, resume_from=checkpoint)
    lines = [line for line in str(refusal.value).splitlines() if line.startswith("  - ")]
    assert lines == [f"  - {then}: {checkpoint.made_with[then]!r} then, 'other' now"]
    # Unchanged it resumes, and so does an old checkpoint that does not name its maker.
    for resumable in (checkpoint, replace(checkpoint, made_with={})):
        assert train(config, tmp_path, resume_from=resumable)[0].outcome == "finished"


def test_resuming_with_another_configuration_is_refused(tiny_root, tmp_path):
    _, paths = train(tiny_config(tiny_root), tmp_path, stop_after=1)
    checkpoint = load_checkpoint(paths[1])
    with pytest.raises(ValueError, match=r"loss.alpha: 32.0 then, 16.0 now"):
        train(tiny_config(tiny_root, loss__alpha=16), tmp_path, resume_from=checkpoint)


def test_a_loss_that_is_not_finite_ends_the_trial_with_epoch_and_step(tiny_root, tmp_path):
    config = tiny_config(
        tiny_root, optimizer__name="sgd", optimizer__learning_rate=100, loss__name="n_pair",
        loss__normalize=False, loss__scale=1000, training__epochs=20,
    )  # fmt: skip
    result, paths = train(config, tmp_path)
    assert result.outcome == "diverged"
    assert result.step is not None
    assert f"at epoch {result.epoch + 1}, step {result.step}" in result.reason
    assert f"last good state is that after epoch {result.epoch}" in result.reason
    assert len(paths) == result.epoch


def test_embeddings_that_are_all_alike_end_the_trial(tiny_root, tmp_path):
    # Weight decay strong enough to empty the network leaves only the head's bias.
    config = tiny_config(
        tiny_root, optimizer__weight_decay=1, optimizer__learning_rate=0.9, training__epochs=20,
        training__collapse_below=0.3, schedule__name="constant",
    )  # fmt: skip
    result, _ = train(config, tmp_path)
    assert result.outcome == "collapsed"
    assert f"collapsed after epoch {result.epoch}" in result.reason
    assert "training.collapse_below=0.3" in result.reason


def test_warmup_leaves_the_trunk_alone(tiny_root, tmp_path):
    config = tiny_config(tiny_root, training__warmup_epochs=2)
    _, paths = train(config, tmp_path)
    first, second, third = (load_checkpoint(paths[epoch]).model for epoch in (1, 2, 3))
    weight = "trunk.stage1.0.weight"
    assert torch.equal(first[weight], second[weight])
    assert not torch.equal(second[weight], third[weight])
    assert not torch.equal(first["head.projection.weight"], second["head.projection.weight"])


def test_frozen_batch_norm_keeps_its_statistics(tiny_root, tmp_path):
    _, paths = train(tiny_config(tiny_root, training__freeze_batch_norm=True), tmp_path)
    model = load_checkpoint(paths[3]).model
    assert model["trunk.stage1.1.running_mean"].abs().sum() == 0
    assert not torch.equal(
        model["trunk.stage1.1.weight"], torch.ones_like(model["trunk.stage1.1.weight"])
    )


def test_the_best_epoch_is_chosen_by_its_validation_score(tiny_root, tmp_path):
    config = tiny_config(tiny_root, training__epochs=5, training__selection_metric="recall_at_1")
    result, paths = train(config, tmp_path)
    scores = [report.validation["recall_at_1"] for report in result.reports]
    assert result.best_score == max(scores)
    assert result.best_epoch == scores.index(max(scores)) + 1
    best, last = load_checkpoint(paths[result.best_epoch]), load_checkpoint(paths[5])
    weight = "trunk.stage3.0.weight"
    assert torch.equal(last.selected_model()[weight], best.model[weight])


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_every_loss_trains(tiny_root, tmp_path, name):
    knobs = {"loss__name": name, "training__epochs": 1}
    if LOSSES[name].uses_continuous_labels:
        knobs |= {"data__continuous_labels": ["rotation", "scale"], "sampler__name": "dense"}
        knobs |= {"sampler__batch_size": 16}
    result, _ = train(tiny_config(tiny_root, **knobs), tmp_path)
    assert result.outcome == "finished"


def test_a_loss_of_pytorch_metric_learning_trains(tiny_root, tmp_path):
    config = tiny_config(tiny_root, loss__name="pml:SubCenterArcFaceLoss")
    assert train(config, tmp_path)[0].outcome == "finished"


def test_epochs_between_validations_have_no_scores(tiny_root, tmp_path):
    config = tiny_config(tiny_root, training__validate_every=2, training__epochs=3)
    result, _ = train(config, tmp_path)
    assert [bool(report.validation) for report in result.reports] == [False, True, True]


def test_quantised_labels_train_a_class_loss_and_are_judged_by_ndcg(tiny_root, tmp_path):
    config = tiny_config(
        tiny_root, loss__name="triplet", data__continuous_labels=["rotation"],
        data__quantize_bins=5,
    )  # fmt: skip
    result, _ = train(config, tmp_path)
    assert result.best_score == max(r.validation["ndcg_at_5"] for r in result.reports)


EXPANDABLE = ["triplet", "n_pair", "lifted_structure", "multi_similarity"]


def train_and_read(config, folder):
    train_in_folder(config, open_development(config.data), folder, on_message=lambda _: None)
    return read_epochs(folder)


def test_tables_and_synthetic_recalls_are_recorded_for_each_validated_epoch(tiny_root, tmp_path):
    config = tiny_config(
        tiny_root,
        evaluation__class_distances=2,
        evaluation__synthetic_points=2,
        training__validate_every=2,
        training__select="last",
    )
    epochs = train_and_read(config, tmp_path)
    assert [bool(epoch["tables"]) for epoch in epochs] == [False, True, True]
    assert 0 <= epochs[-1]["validation"]["synthetic_recall_at_1"] <= 1
    assert not any("hardest" in name for name in epochs[-1]["validation"])
    checkpoint, _ = load_newest_checkpoint(tmp_path / "checkpoints")
    images = open_development(config.data).validation
    embeddings = embed_with_checkpoint(checkpoint, images)
    wanted = smallest_class_distances(embeddings, images.labels, max_classes=2, metric="cosine")
    table = np.array(epochs[-1]["tables"]["hardest_distances"])
    assert table.shape == (2, 2)
    assert table == pytest.approx(wanted, abs=1e-3)
    assert np.array_equal(table, table.round(4))


def test_tables_and_synthetic_recalls_are_absent_by_default(tiny_root, tmp_path):
    epoch = train_and_read(tiny_config(tiny_root, training__epochs=1), tmp_path)[0]
    assert epoch["tables"] == {}
    assert not any("synthetic" in name for name in epoch["validation"])


@pytest.mark.parametrize("loss", EXPANDABLE)
def test_the_share_of_synthetics_is_recorded_for_every_expandable_loss(tiny_root, tmp_path, loss):
    config = tiny_config(
        tiny_root,
        loss__name=loss,
        loss__expansion__points=2,
        training__epochs=2,
    )
    shares = [
        epoch["diagnostics"]["synthetic_fraction"] for epoch in train_and_read(config, tmp_path)
    ]
    assert len(shares) == 2
    assert all(0 <= share <= 1 for share in shares)
    assert max(shares) > 0
