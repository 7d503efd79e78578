"""Tests of the estimated cost of a study."""

import numpy as np
import pytest

from dml_core.config import ConfigError, resolve_trial_config
from dml_core.samplers.dense import DenseSampler
from dml_core.studies.cost import count_images_per_epoch, estimate_gpu_hours, sum_cost
from tests.references.written_studies import TWO_ARMS, read_study


def test_the_cost_is_that_of_all_tries_and_seeds(tmp_path):
    cost = sum_cost(read_study(tmp_path, TWO_ARMS), {"triplet": 10.0, "anchor": 20.0})
    # Each arm has 3 tries and 2 seeds.
    assert (cost.num_search_trials, cost.num_repeat_trials) == (6, 4)
    assert cost.num_trained == 10
    assert cost.total_seconds == pytest.approx(150)
    assert cost.wall_seconds(num_concurrent=5) == pytest.approx(30)
    with pytest.raises(ValueError, match=r"at least 1\. Got 0"):
        cost.wall_seconds(num_concurrent=0)


def test_folds_multiply_the_search_and_not_the_repeats(tmp_path):
    text = TWO_ARMS + "folds: 3\nfixed: {data.alias: folded}\n"
    cost = sum_cost(read_study(tmp_path, text), {"triplet": 1.0, "anchor": 1.0})
    assert (cost.num_search_trials, cost.num_repeat_trials) == (18, 4)


def test_pruning_shortens_the_search_and_not_the_repeats(tmp_path):
    text = TWO_ARMS + "scheduler: {name: asha, grace_epochs: 7, reduction_factor: 3}\n"
    text += "fixed: {training.epochs: 21, training.validate_every: 7}\n"
    seconds = {"triplet": 21.0, "anchor": 42.0}
    cost = sum_cost(read_study(tmp_path, text), seconds)
    # At the rung of epoch 7, 1 + 1/2 + 1/3 of 3 tries continue: 3 * 7 + 11/6 * 14 = 46.67 of 63
    # epochs, a second each for triplet and two for anchor. Both have 2 seeds.
    searched = 3 * 7 + 11 / 6 * 14
    assert cost.search_share == pytest.approx(searched / 63)
    assert cost.total_seconds == pytest.approx(3 * searched + 2 * (21 + 42))
    text = text.replace("fixed: {", "fixed: {data.alias: folded, ") + "folds: 2\n"
    folded = sum_cost(read_study(tmp_path, text), seconds)
    assert folded.total_seconds == pytest.approx(2 * 3 * searched + 2 * (21 + 42))
    assert sum_cost(read_study(tmp_path, TWO_ARMS), seconds).search_share == 1


def test_an_arm_without_a_search_costs_its_repeats(tmp_path):
    study = read_study(tmp_path, "{question: q, arms: {a: {}}, seeds: [0, 1]}")
    cost = sum_cost(study, {"a": 1.0})
    assert (cost.num_search_trials, cost.num_repeat_trials) == (0, 2)


@pytest.mark.parametrize("epoch", ["images", "anchors"])
def test_images_of_an_epoch_are_those_that_the_sampler_draws(epoch):
    layer = {"data.continuous_labels": ["rotation"], "sampler.name": "dense"}
    layer |= {"sampler.batch_size": 12, "sampler.anchors_per_batch": 2, "sampler.epoch": epoch}
    config = resolve_trial_config(layer)
    labels = np.random.default_rng(0).normal(size=(50, 1))
    sampler = DenseSampler(labels, **dict(config.sampler))
    assert count_images_per_epoch(config, 50) == len(sampler) * 12


CARS = """
question: q
arms: {a: {loss.alpha: 16}, b: {loss.alpha: 32}}
fixed:
  data: {name: cars196, alias: cars}
  augmentation: {input_size_px: SIZE}
  sampler: {name: shuffled, batch_size: 100}
  model: {backbone: "BACKBONE", weights: imagenet}
  training: {epochs: 10}
seeds: [0, 1, 2]
"""


def read(folder, *, backbone="torchvision:resnet50", size=224, text=CARS):
    return read_study(folder, text.replace("BACKBONE", backbone).replace("SIZE", str(size)))


def test_hours_are_images_over_speed_without_any_data(tmp_path):
    estimate = estimate_gpu_hours(read(tmp_path), images_per_second=100)
    # Of 8,054 images a quarter is for validation: 60 batches of 100 are trained on, ten times,
    # and 2,014 looked at after each epoch, at a third of the cost; 2 arms x 3 seeds.
    seconds = (10 * 6000 + 10 * 2014 / 3) / 100
    assert estimate.cost.seconds_per_trial["a"] == pytest.approx(seconds, rel=1e-3)
    assert estimate.hours == pytest.approx(6 * seconds / 3600, rel=1e-3)
    assert "as given" in estimate.assumptions[0]


def test_the_published_speed_is_that_of_a_resnet50_and_scales(tmp_path):
    known = estimate_gpu_hours(read(tmp_path), images_per_second=367).hours
    assert estimate_gpu_hours(read(tmp_path)).hours == pytest.approx(known)
    larger = estimate_gpu_hours(read(tmp_path, size=448)).hours
    assert larger == pytest.approx(4 * known)
    lighter = estimate_gpu_hours(read(tmp_path, backbone="torchvision:googlenet"))
    assert lighter.hours == pytest.approx(known * 1.498 / 4.089, rel=1e-3)
    assert "8,054 images of cars196" in lighter.assumptions[0]


def test_unpublished_numbers_are_refused_with_what_to_do(tmp_path):
    with pytest.raises(ConfigError, match=r"convnet has no published.*--images-per-second"):
        estimate_gpu_hours(read(tmp_path, backbone="convnet"))
    glyphs = "{question: q, arms: {a: {}}, seeds: [0]}"
    with pytest.raises(ConfigError, match=r"data.name=glyphs has no official.*measured on"):
        estimate_gpu_hours(read_study(tmp_path, glyphs), images_per_second=100)
