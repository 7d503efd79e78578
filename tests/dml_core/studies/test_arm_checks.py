import re

import pytest

from dml_core.config import resolve_trial_config
from dml_core.studies.arm_checks import TrainingSize, find_batch_problems, list_corners
from dml_core.studies.dimensions import Choice, Range
from tests.references.written_studies import problems_of


def test_corners_hold_every_end_and_option_without_all_combinations():
    space = {"a": Range("uniform", 0.0, 1.0), "b": Choice((1, 2, 3))}
    assert list_corners(space) == [
        {"a": 0.0, "b": 1},
        {"a": 1.0, "b": 3},
        {"a": 1.0, "b": 1},
        {"a": 0.0, "b": 2},
        {"a": 0.0, "b": 3},
    ]
    assert list_corners({}) == [{}]


def test_a_range_beyond_the_allowed_values_is_found_at_its_end(tmp_path):
    text = """
question: q
arms: {a: {}}
nuisance: {loss.delta: {uniform: [0.5, 1.5]}}
trials_per_arm: 2
"""
    (problem,) = problems_of(tmp_path, text)
    assert problem == "nuisance.loss.delta must be <= 1.0. Got 1.5 (float)."


def test_a_tuned_value_that_one_arm_cannot_train_with_names_the_arm(tmp_path):
    text = """
question: q
arms: {plain: {loss.alpha: 8}, short: {training.epochs: 3}}
nuisance: {training.warmup_epochs: {choice: [1, 3]}}
trials_per_arm: 2
"""
    (problem,) = problems_of(tmp_path, text)
    assert problem.startswith("nuisance.training.warmup_epochs must be below training.epochs")
    assert problem.endswith("Got 3 and 3. (in arms.short)")


def test_a_combination_that_cannot_train_names_arm_and_values(tmp_path):
    text = """
question: q
arms:
  few: {sampler.class_ratio: null, sampler.classes_per_batch: 4}
  many: {sampler.class_ratio: null, sampler.classes_per_batch: 10}
nuisance: {sampler.batch_size: {choice: [50, 8]}}
trials_per_arm: 2
"""
    (problem,) = problems_of(tmp_path, text)
    assert problem.startswith("arms.many with sampler.batch_size=8: ")
    assert "classes_per_batch=10 and batch_size=8" in problem


def test_a_knob_of_another_loss_is_reported_once_for_all_arms_that_lack_it(tmp_path):
    text = """
question: q
grid: {loss.name: [triplet, proxy_anchor, norm_softmax]}
nuisance: {loss.margin: {uniform: [0, 1]}}
trials_per_arm: 2
"""
    problems = problems_of(tmp_path, text)
    assert len(problems) == 2
    assert problems[0].startswith("nuisance.loss.margin is not a known parameter of loss.name=prox")
    assert problems[0].endswith("(in arms.proxy_anchor)")


def test_a_problem_of_the_fixed_values_is_reported_once(tmp_path):
    text = "{question: q, grid: {loss.alpha: [1, 2, 3]}, fixed: {model.widht: 8}}"
    assert problems_of(tmp_path, text) == [
        "fixed.model.widht is not a known parameter. Did you mean 'model.width'?"
    ]


def test_a_grace_that_outlasts_the_training_is_refused(tmp_path):
    text = """
question: q
arms: {long: {training.epochs: 9}, short: {training.epochs: 4}}
nuisance: {loss.delta: {uniform: [0, 1]}}
trials_per_arm: 2
scheduler: {name: asha, grace_epochs: 4}
"""
    (problem,) = problems_of(tmp_path, text)
    assert problem.startswith("arms.short: scheduler.grace_epochs must be below training.epochs")
    assert problem.endswith("Got 4 and 4.")


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        ({"class_ratio": 0.1}, r"at least two of the 12 .* Got 0.1, which leaves 1.2"),
        ({"class_ratio": 0.9, "batch_size": 10}, "requests 11 classes per batch, more than .*=10"),
        ({"class_ratio": None, "classes_per_batch": 13}, "there are only 12 training classes"),
        ({"class_ratio": None, "samples_per_class": 2}, "requests 50 classes per batch"),
    ],
)
def test_a_batch_that_cannot_be_made_is_found(sampler, message):
    config = resolve_trial_config({f"sampler.{key}": value for key, value in sampler.items()})
    (problem,) = find_batch_problems(config, TrainingSize(12, 96))
    assert re.search(message, problem)


DENSE = {"sampler.name": "dense", "data.continuous_labels": ["rotation"]}


@pytest.mark.parametrize("sampler", [{"sampler.name": "shuffled"}, DENSE])
def test_a_batch_of_more_images_than_there_are_is_found(sampler):
    config = resolve_trial_config({**sampler, "sampler.batch_size": 97})
    assert find_batch_problems(config, TrainingSize(12, 97)) == []
    (problem,) = find_batch_problems(config, TrainingSize(12, 96))
    assert problem == (
        "sampler.batch_size must be at most the number of training images. Got 97 and 96 images. "
        "Lower sampler.batch_size."
    )


def test_batches_that_can_be_made_are_no_problem():
    assert find_batch_problems(resolve_trial_config(), TrainingSize(12, 96)) == []
    shuffled = resolve_trial_config({"sampler.name": "shuffled"})
    assert find_batch_problems(shuffled, TrainingSize(1, 100)) == []
    bins = {"data.continuous_labels": ["rotation"], "data.quantize_bins": 50}
    balanced = {"sampler.class_ratio": None, "sampler.classes_per_batch": 20}
    # The classes of this training are bins, however few classes the data have.
    assert find_batch_problems(resolve_trial_config(bins, balanced), TrainingSize(12, 96)) == []


def test_a_batch_is_checked_at_every_tuned_size_and_names_the_arm(tmp_path):
    text = """
question: q
arms:
  balanced: {}
  shuffled: {sampler.name: shuffled}
  dense: {sampler.name: dense, sampler.anchors_per_batch: 2}
fixed: {data.continuous_labels: [rotation]}
nuisance: {sampler.batch_size: {choice: [50, 100]}}
trials_per_arm: 2
"""
    (problem,) = problems_of(tmp_path, text, size=TrainingSize(12, 99))
    assert problem.startswith("nuisance.sampler.batch_size must be at most the number of training")
    assert problem.endswith("Lower sampler.batch_size. (in arms shuffled, dense)")


def test_dense_batches_need_continuous_labels(tmp_path):
    text = "{question: q, arms: {a: {}, b: {sampler.name: dense}}}"
    (problem,) = problems_of(tmp_path, text, size=TrainingSize(12, 200))
    assert problem.startswith("arms.b: sampler.name=dense finds neighbors by continuous")
    assert "data.continuous_labels must name at least one column. Got none" in problem


def test_a_tuned_class_ratio_is_checked_at_both_ends(tmp_path):
    text = """
question: q
arms: {a: {}, b: {loss.alpha: 8}}
nuisance: {sampler.class_ratio: {uniform: [0.01, 0.5]}}
trials_per_arm: 2
"""
    (problem,) = problems_of(tmp_path, text, size=TrainingSize(100, 800))
    assert problem.startswith("nuisance.sampler.class_ratio must leave at least two of the 100")
    assert "Got 0.01, which leaves 1." in problem
