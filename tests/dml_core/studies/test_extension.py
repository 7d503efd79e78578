"""Further tries where the best value of an arm lies at an end of its range."""

import pytest

from dml_core.studies.definition import SEARCH_SEED
from dml_core.studies.extension import extend_search
from dml_core.trials.winners import choose_winners
from tests.references.written_studies import make_record, read_study

STUDY = """
question: Which loss?
arms: {{triplet: {{loss.name: triplet}}, anchor: {{loss.name: proxy_anchor}}}}
nuisance: {{{key}: {space}}}
searcher: {searcher}
{more}
"""
RATE = "optimizer.learning_rate"


def make_study(folder, space, *, key=RATE, searcher="grid", more=""):
    text = STUDY.format(key=key, space=space, searcher=searcher, more=more)
    return read_study(folder, text)


def search(study, scores):
    """Returns records of all search trials, with the scores of each arm by the order of tries."""
    return [make_record(spec, scores[spec.arm][spec.number]) for spec in study.search_specs()]


def values_by_arm(specs, key=RATE):
    return {
        arm: [spec.values[key] for spec in specs if spec.arm == arm]
        for arm in dict.fromkeys(spec.arm for spec in specs)
    }


def test_no_arm_at_an_end_needs_no_further_try(tmp_path):
    study = make_study(tmp_path, "{choice: [0.001, 0.003, 0.009]}")
    records = search(study, {"triplet": [0.1, 0.3, 0.2], "anchor": [0.2, 0.4, 0.1]})
    assert extend_search(study, records) == []


def test_an_arm_at_an_end_tries_beyond_it_and_the_other_between(tmp_path):
    study = make_study(tmp_path, "{choice: [0.001, 0.003, 0.009]}")
    records = search(study, {"triplet": [0.1, 0.2, 0.3], "anchor": [0.2, 0.4, 0.1]})
    specs = extend_search(study, records)
    # 0.009 x 3; and sqrt(0.003 x 0.001) towards the better neighbour.
    assert values_by_arm(specs) == {"triplet": [0.027], "anchor": [0.00173]}
    assert [spec.trial_id for spec in specs] == ["triplet-3", "anchor-3"]
    assert {spec.config.seed for spec in specs} == {SEARCH_SEED}
    assert {spec.phase for spec in specs} == {"search"}


def test_a_second_round_continues_from_the_first(tmp_path):
    study = make_study(tmp_path, "{choice: [0.001, 0.003, 0.009]}")
    records = search(study, {"triplet": [0.3, 0.2, 0.1], "anchor": [0.1, 0.2, 0.3]})
    first = extend_search(study, records)
    assert values_by_arm(first) == {"triplet": [0.000333], "anchor": [0.027]}
    scores = {"triplet": 0.1, "anchor": 0.5}
    records += [make_record(spec, scores[spec.arm]) for spec in first]
    second = extend_search(study, records)
    assert values_by_arm(second)["anchor"] == [0.081]
    # The best is 0.001 again, inside of what was tried; 0.003 is its better neighbour.
    assert values_by_arm(second)["triplet"] == [0.00173]
    assert {spec.number for spec in second} == {4}


def test_a_value_that_diverged_bounds_the_range(tmp_path):
    study = make_study(tmp_path, "{choice: [0.001, 0.003]}")
    records = search(study, {"triplet": [0.1, 0.3], "anchor": [0.1, 0.3]})
    further = extend_search(study, records)
    assert values_by_arm(further) == {"triplet": [0.009], "anchor": [0.009]}
    records += [make_record(spec, None, "diverged") for spec in further]
    assert extend_search(study, records) == []
    assert choose_winners(study, records)["anchor"].at_bound == {}


def test_differences_of_a_narrow_choice_are_kept(tmp_path):
    study = make_study(tmp_path, "{choice: [0.4, 0.5, 0.6]}", key="optimizer.beta1")
    records = search(study, {"triplet": [0.1, 0.2, 0.3], "anchor": [0.3, 0.2, 0.1]})
    specs = extend_search(study, records)
    assert values_by_arm(specs, "optimizer.beta1") == {"triplet": [0.7], "anchor": [0.3]}


def test_a_value_that_the_configuration_refuses_is_not_tried(tmp_path):
    # beta1 must be below 1.
    study = make_study(tmp_path, "{choice: [0.1, 0.5, 0.9]}", key="optimizer.beta1")
    records = search(study, {"triplet": [0.1, 0.2, 0.3], "anchor": [0.1, 0.3, 0.2]})
    assert extend_search(study, records) == []


@pytest.mark.parametrize(
    ("space", "key"),
    [
        ("{choice: [adamw, sgd]}", "optimizer.name"),
        ("{choice: [[1], [2]]}", "evaluation.recall_at"),
        ("{choice: [0.001]}", RATE),
    ],
)
def test_options_without_an_order_are_never_extended(tmp_path, space, key):
    study = make_study(tmp_path, space, key=key)
    records = [make_record(spec, 0.5) for spec in study.search_specs()]
    assert extend_search(study, records) == []


def test_a_range_is_extended_by_a_quarter(tmp_path):
    more = "trials_per_arm: 2"
    study = make_study(tmp_path, "{log_uniform: [0.001, 0.1]}", searcher="random", more=more)
    spec = study.make_further_spec
    records = [
        make_record(spec("triplet", 0, {RATE: 0.01}), 0.1),
        make_record(spec("triplet", 1, {RATE: 0.1}), 0.3),
        make_record(spec("anchor", 0, {RATE: 0.01}), 0.3),
        make_record(spec("anchor", 1, {RATE: 0.04}), 0.1),
    ]
    # Two decades; a quarter of them is a factor of sqrt(10) beyond 0.1.
    assert values_by_arm(extend_search(study, records)) == {"triplet": [0.316], "anchor": [0.02]}


def test_every_fold_of_a_further_try_is_a_trial(tmp_path):
    study = make_study(
        tmp_path, "{choice: [0.001, 0.003]}", more="folds: 2\nfixed: {data.alias: own}"
    )
    records = search(study, {"triplet": [0.1, 0.3], "anchor": [0.1, 0.3]})
    specs = extend_search(study, records)
    assert [spec.trial_id for spec in specs] == [
        "triplet-2-fold0", "triplet-2-fold1", "anchor-2-fold0", "anchor-2-fold1",
    ]  # fmt: skip


def test_the_winners_may_have_a_value_outside_of_the_written_range(tmp_path):
    study = make_study(tmp_path, "{choice: [0.001, 0.003]}", more="seeds: [1, 2]")
    repeats = study.repeat_specs({"triplet": {RATE: 0.009}})
    assert [spec.config.optimizer.learning_rate for spec in repeats] == [0.009, 0.009]
