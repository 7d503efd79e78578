"""Tests of arms and trials of a resolved study."""

import json

import pytest

from dml_core.config.loading import to_flat_dict
from dml_core.studies.definition import SEARCH_SEED, Study
from dml_core.studies.resolved import expand_arms, name_grid_point
from dml_core.trials.winners import choose_winners
from tests.references.written_studies import LEARNING_RATE, TWO_ARMS, problems_of, read_study


def names(**fields):
    return [arm.name for arm in expand_arms(Study(question="?", **fields))]


@pytest.mark.parametrize(
    ("point", "name"),
    [
        ({"loss.name": "triplet", "model.embedding_dim": 64}, "triplet-64"),
        ({"sampler.batch_size": 30}, "batch_size-30"),
        ({"sampler.batch_size": 30, "sampler.class_ratio": 0.1}, "batch_size-30-class_ratio-0.1"),
        ({"model.layer_norm": True}, "layer_norm-true"),
        ({"sampler.class_ratio": None}, "class_ratio-none"),
        ({"model.backbone": "timm:resnet50/a"}, "timm_resnet50_a"),
        ({"evaluation.recall_at": [1, 2]}, "recall_at-1_2"),
    ],
)
def test_a_point_of_the_grid_has_a_short_safe_name(point, name):
    assert name_grid_point(point) == name


def test_a_grid_makes_every_combination_in_the_order_of_the_file():
    grid = {"loss.name": ["triplet", "contrastive"], "model.embedding_dim": [32, 64]}
    assert names(grid=grid) == ["triplet-32", "triplet-64", "contrastive-32", "contrastive-64"]


def test_a_grid_may_list_whole_sections():
    grid = {"loss": [{"name": "triplet", "margin": 0.1}, {"name": "contrastive"}]}
    arms = expand_arms(Study(question="?", grid=grid))
    assert arms[0].layer == {"loss.name": "triplet", "loss.margin": 0.1}


def test_listed_arms_are_multiplied_by_the_grid():
    arms = {"plain": {"loss.name": "triplet"}, "anchor": {"loss.name": "proxy_anchor"}}
    study = Study(question="?", arms=arms, grid={"model.embedding_dim": [32, 64]})
    expanded = expand_arms(study)
    assert [arm.name for arm in expanded] == ["plain-32", "plain-64", "anchor-32", "anchor-64"]
    assert expanded[3].layer == {"loss.name": "proxy_anchor", "model.embedding_dim": 64}


def test_with_a_grid_an_arm_is_compared_at_the_same_point():
    arms = {"plain": {}, "other": {"scientific": {"seed": 1}, "compare_with": "plain"}}
    study = Study(question="?", arms=arms, grid={"model.embedding_dim": [32, 64]})
    assert expand_arms(study)[3].compare_with == "plain-64"


def test_sections_may_be_nested_or_dotted():
    nested = Study(
        question="?",
        arms={"a": {"loss": {"name": "triplet", "margin": 0.1}}},
        nuisance={"optimizer": {"learning_rate": {"uniform": [0.1, 0.2]}}},
    )
    arm = expand_arms(nested)[0]
    assert arm.layer == {"loss.name": "triplet", "loss.margin": 0.1}
    assert list(arm.space) == ["optimizer.learning_rate"]


def test_an_arms_own_range_counts_before_the_studys():
    arms = {"a": {"scientific": {}, "nuisance": {"loss.alpha": {"choice": [1]}}}, "b": {}}
    study = Study(question="?", arms=arms, nuisance={"loss.alpha": {"choice": [2, 3]}})
    assert [arm.space["loss.alpha"].options for arm in expand_arms(study)] == [(1,), (2, 3)]


CONDITIONAL = """
question: Which loss?
arms:
  triplet: {scientific: {loss.name: triplet}, nuisance: {loss.margin: {uniform: [0.05, 0.5]}}}
  anchor: {scientific: {loss.name: proxy_anchor}, nuisance: {loss.alpha: {choice: [16, 32]}}}
nuisance: {optimizer.learning_rate: {log_uniform: [1e-4, 1e-2]}}
trials_per_arm: 2
seeds: [0]
"""


def test_every_arm_has_the_same_number_of_search_trials_in_turn(tmp_path):
    specs = read_study(tmp_path, TWO_ARMS).search_specs()
    assert [spec.trial_id for spec in specs] == [
        "triplet-0", "anchor-0", "triplet-1", "anchor-1", "triplet-2", "anchor-2",
    ]  # fmt: skip
    # Not a seed of the study: its own seeds are fresh.
    assert {spec.config.seed for spec in specs} == {SEARCH_SEED}
    assert {(spec.study, spec.phase) for spec in specs} == {("asked", "search")}


def test_values_go_into_the_configuration(tmp_path):
    for spec in read_study(tmp_path, TWO_ARMS).search_specs():
        assert spec.config.optimizer.learning_rate == spec.values["optimizer.learning_rate"]
        assert 1e-4 <= spec.config.optimizer.learning_rate <= 1e-2


def test_random_values_depend_on_seed_arm_and_number_alone(tmp_path):
    few = {s.trial_id: s.values for s in read_study(tmp_path, TWO_ARMS).search_specs()}
    text = TWO_ARMS.replace("trials_per_arm: 3", "trials_per_arm: 5").replace(
        "arms: {", "arms: {new: {loss.name: contrastive}, "
    )
    many = {s.trial_id: s.values for s in read_study(tmp_path, text).search_specs()}
    assert few == {key: many[key] for key in few}
    assert len({json.dumps(values) for values in many.values()}) == 15


def test_another_search_seed_draws_other_values(tmp_path):
    one = read_study(tmp_path, TWO_ARMS)
    two = read_study(tmp_path, TWO_ARMS, "sweep.seed=1")
    assert one.search_specs()[0].values != two.search_specs()[0].values
    assert one.digest != two.digest


def test_each_arm_searches_its_own_knobs(tmp_path):
    triplet, anchor, *_ = read_study(tmp_path, CONDITIONAL).search_specs()
    assert set(triplet.values) == {"loss.margin", "optimizer.learning_rate"}
    assert set(anchor.values) == {"loss.alpha", "optimizer.learning_rate"}
    assert triplet.config.loss.margin == triplet.values["loss.margin"]


def test_a_grid_search_tries_every_combination_once(tmp_path):
    text = """
question: ?
arms: {a: {loss.name: triplet}}
nuisance: {optimizer.learning_rate: {choice: [0.1, 0.2]}, loss.margin: {choice: [0, 0.1, 0.3]}}
searcher: grid
"""
    study = read_study(tmp_path, text.replace("?", "'?'"))
    points = {tuple(spec.values.items()) for spec in study.search_specs()}
    assert study.trials_per_arm == 6
    assert len(points) == 6
    assert (("loss.margin", 0.3), ("optimizer.learning_rate", 0.2)) in points


def test_an_arm_without_nuisance_values_has_no_search(tmp_path):
    text = "question: q\narms: {a: {}, b: {seed_: 1}}".replace("seed_: 1", "loss.alpha: 8")
    study = read_study(tmp_path, text)
    assert study.trials_per_arm == 0
    assert study.search_specs() == []
    repeats = study.repeat_specs({"a": {}, "b": {}})
    assert [spec.trial_id for spec in repeats[:3]] == ["a-seed0", "b-seed0", "a-seed1"]


def test_tpe_cannot_list_its_values_in_advance(tmp_path):
    study = read_study(tmp_path, TWO_ARMS + "searcher: tpe\n")
    with pytest.raises(ValueError, match="depend on the results of earlier trials"):
        study.search_specs()
    values = {"optimizer.learning_rate": 0.001}
    assert study.make_search_spec("anchor", 2, values).trial_id == "anchor-2"


def test_every_search_trial_runs_on_every_fold(tmp_path):
    study = read_study(tmp_path, TWO_ARMS + "folds: 2\nfixed: {data.alias: folded}\n")
    specs = study.search_specs()
    assert [spec.trial_id for spec in specs[:3]] == [
        "triplet-0-fold0", "triplet-0-fold1", "anchor-0-fold0",
    ]  # fmt: skip
    assert [(spec.config.data.folds, spec.config.data.fold) for spec in specs[:2]] == [
        (2, 0), (2, 1),
    ]  # fmt: skip
    assert specs[0].values == specs[1].values


def test_folds_come_from_params_if_the_study_omits_them(tmp_path):
    assert read_study(tmp_path, TWO_ARMS, params="data: {folds: 4}").folds == 4
    assert read_study(tmp_path, TWO_ARMS, "data.folds=5").folds == 5


def test_winners_are_repeated_over_all_seeds(tmp_path):
    study = read_study(tmp_path, TWO_ARMS)
    values = {"optimizer.learning_rate": 0.003}
    specs = study.repeat_specs({"anchor": values, "triplet": values})
    assert [spec.trial_id for spec in specs] == [
        "triplet-seed4", "anchor-seed4", "triplet-seed7", "anchor-seed7",
    ]  # fmt: skip
    assert [spec.config.seed for spec in specs] == [4, 4, 7, 7]
    assert [spec.number for spec in specs] == [0, 0, 1, 1]
    assert {spec.config.optimizer.learning_rate for spec in specs} == {0.003}
    assert [spec.arm for spec in study.repeat_specs({"anchor": values})] == ["anchor"] * 2


def test_winners_are_trained_with_seeds_that_the_search_has_not_seen(tmp_path):
    study = read_study(tmp_path, TWO_ARMS)
    tried = study.search_specs()[0]
    repeats = study.repeat_specs({"triplet": tried.values})
    assert [spec.config.seed for spec in repeats] == [4, 7]
    assert all(
        spec.config == tried.config.model_copy(update={"seed": spec.config.seed})
        for spec in repeats
    )


@pytest.mark.parametrize("searcher", ["grid", "random"])
def test_a_single_try_is_trained_with_the_seeds_alone(tmp_path, searcher):
    text = f"""
question: q
arms: {{a: {{}}, b: {{loss.alpha: 3}}}}
nuisance: {{optimizer.learning_rate: {{choice: [0.5]}}}}
trials_per_arm: 1
searcher: {searcher}
seeds: [4, 7]
"""
    study = read_study(tmp_path, text)
    assert (study.searched_arms, study.search_specs()) == ([], [])
    winners = choose_winners(study, [])
    assert winners["a"].values == {"optimizer.learning_rate": 0.5}
    assert winners["a"].at_bound == {}
    repeats = study.repeat_specs({arm: winner.values for arm, winner in winners.items()})
    assert {spec.config.optimizer.learning_rate for spec in repeats} == {0.5}


def test_no_study_can_list_the_seed_of_the_search(tmp_path):
    problems = problems_of(tmp_path, TWO_ARMS.replace("[4, 7]", f"[4, {SEARCH_SEED}]"))
    assert any(f"must be < {SEARCH_SEED}. Got {SEARCH_SEED}" in text for text in problems)


def test_no_two_trials_share_an_id_whatever_the_names_of_the_arms(tmp_path):
    text = """
question: q
arms:
  a: {loss.alpha: 1}
  a-1: {loss.alpha: 2}
  a-seed0: {loss.alpha: 3}
  a-1-fold1: {loss.alpha: 4}
nuisance: {optimizer.learning_rate: {uniform: [0.1, 0.2]}}
trials_per_arm: 12
folds: 3
fixed: {data.alias: folded}
"""
    study = read_study(tmp_path, text)
    specs = study.search_specs()
    specs += study.repeat_specs({arm.name: specs[0].values for arm in study.arms})
    assert len({spec.trial_id for spec in specs}) == len(specs) == 4 * 12 * 3 + 4 * 5


def test_layers_win_in_their_order(tmp_path):
    text = """
question: q
arms: {a: {model.width: 12}, b: {loss.alpha: 3}}
fixed: {model.width: 8, model.embedding_dim: 16, training.epochs: 5}
nuisance: {optimizer.weight_decay: {choice: [0.5, 0.6]}}
trials_per_arm: 2
searcher: grid
"""
    params = "{model.width: 4, model.embedding_dim: 32, optimizer.weight_decay: 0.1, loss.delta: 0}"
    study = read_study(tmp_path, text, "training.epochs=9", params=params)
    a, b = (spec.config for spec in study.search_specs()[:2])
    assert (a.model.width, b.model.width, a.model.embedding_dim) == (12, 8, 16)
    assert (a.optimizer.weight_decay, a.training.epochs, a.loss.delta) == (0.5, 9, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("nobody", 0, {}), "no arm 'nobody'"),
        (("triplit", 0, {}), "Did you mean 'triplet'"),
        (("triplet", 0, {}), r"nuisance keys \['optimizer.learning_rate'\]. Got \[\]"),
        (("triplet", 0, {"optimizer.learning_rate": 1.0}), "must lie in.*Got 1.0"),
        (("triplet", 3, {"optimizer.learning_rate": 1e-3}), "3 trials per arm.*Got number 3"),
    ],
)
def test_a_trial_outside_the_study_is_refused(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        read_study(tmp_path, TWO_ARMS).make_search_spec(*change)


def test_the_digest_follows_what_decides_results_and_nothing_else(tmp_path):
    first = read_study(tmp_path, TWO_ARMS).digest
    same = TWO_ARMS.replace("Which loss?", "Which of the losses?") + "baseline: anchor\n"
    assert read_study(tmp_path, same).digest == first
    assert read_study(tmp_path, TWO_ARMS, "data.prepared_root=elsewhere").digest == first
    changes = [
        TWO_ARMS.replace("[4, 7]", "[4, 8]"),
        TWO_ARMS.replace("1e-2", "2e-2"),
        TWO_ARMS.replace("per_arm: 3", "per_arm: 4"),
        TWO_ARMS.replace("loss.name: triplet", "loss.name: contrastive"),
        TWO_ARMS + "fixed: {training.epochs: 3}\n",
        TWO_ARMS + "scheduler: {name: asha}\n",
        TWO_ARMS + "searcher: tpe\n",
        TWO_ARMS + "folds: 2\nfixed: {data.alias: folded}\n",
    ]
    digests = {first, *(read_study(tmp_path, text).digest for text in changes)}
    assert len(digests) == len(changes) + 1


def test_an_arms_configuration_is_that_of_its_trials_except_for_nuisance_values(tmp_path):
    study = read_study(tmp_path, CONDITIONAL)
    base = to_flat_dict(study.arm_config("triplet"))
    tried = to_flat_dict(study.search_specs()[0].config)
    differing = {key for key in base if base[key] != tried[key]}
    assert differing == {"loss.margin", "optimizer.learning_rate", "seed"}


def test_only_named_arms_are_references_and_compare_with_comes_first(tmp_path):
    text = f"""
question: q
arms:
  a: {{loss.alpha: 1}}
  b: {{loss.alpha: 2}}
  c: {{scientific: {{loss.alpha: 3}}, compare_with: b}}
{LEARNING_RATE}
trials_per_arm: 1
"""
    assert read_study(tmp_path, text).references == {"c": "b"}
    assert read_study(tmp_path, text + "baseline: b\n").references == {"a": "b", "c": "b"}
