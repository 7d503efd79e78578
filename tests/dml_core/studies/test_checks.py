"""Tests of the checks of a study's keys, budget and data."""

from pathlib import Path

import pytest

from dml_core.config.loading import load_project_config
from dml_core.studies.loading import load_study
from tests.references.written_studies import LEARNING_RATE, TWO_ARMS, problems_of, read_study

ARMS = "question: q\narms: {a: {loss.alpha: 1}, b: {loss.alpha: 2}}\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "{question: q, arms: {a: {}, b: {loss.alpha: 32}}}",
            "arms.b changes nothing: with all defaults and fixed values it equals arm 'a'.",
        ),
        (ARMS + "baseline: c", "baseline must be one of the arms. Got 'c'."),
        (
            "{question: q, arms: {a: {}, b: {scientific: {loss.alpha: 1}, compare_with: aa}}}",
            "arms.b.compare_with must be one of the arms. Got 'aa'.",
        ),
        (
            "{question: q, arms: {a: {}, b: {scientific: {loss.alpha: 1}, compare_with: b}}}",
            "arms.b.compare_with must be another arm. Got itself.",
        ),
        (
            ARMS + "nuisance: {loss.alpha: {choice: [1, 2]}}\ntrials_per_arm: 1",
            "nuisance.loss.alpha is scientific too, in arm 'a'.",
        ),
        (
            ARMS + LEARNING_RATE + "\ntrials_per_arm: 1\nfixed: {optimizer.learning_rate: 0.1}",
            "nuisance.optimizer.learning_rate is fixed too.",
        ),
        (ARMS + "fixed: {data.fold: 1}", "fixed.data.fold is set by the study"),
        (ARMS + "fixed: {data.folds: 2}", "fixed.data.folds is set by the study: folds"),
        (
            "{question: q, arms: {a: {loss.alpha: 1}, A: {loss.alpha: 2}}}",
            "arms 'a' and 'A' differ only by case.",
        ),
        (
            "{question: q, grid: {model.backbone: ['timm:a', 'timm/a']}}",
            "grid makes two arms named 'timm_a'.",
        ),
        (
            "{question: q, arms: {a: {data.images_per_class: 9}, b: {}}}",
            "arms.b has another data.images_per_class than arm 'a', but all arms share one",
        ),
        (
            "{question: q, arms: {a: {data.alias: x}, b: {}}}",
            "arms.b changes nothing: with all defaults and fixed values it equals arm 'a'.",
        ),
        (
            "{question: q, arms: {a: {loss.alpha: 2}, b: {}}, grid: {loss.alpha: [3, 4]}}",
            "arms.a.loss.alpha is in grid too, which would win.",
        ),
    ],
)
def test_a_study_that_cannot_answer_its_question_is_refused(tmp_path, text, problem):
    assert any(found.startswith(problem) for found in problems_of(tmp_path, text))


@pytest.mark.parametrize("place", ["scientific", "fixed"])
def test_an_arms_own_range_contradicts_its_other_values(tmp_path, place):
    scientific = "loss.alpha: 2" if place == "scientific" else "loss.delta: 0"
    text = f"""
question: q
arms: {{a: {{scientific: {{{scientific}}}, nuisance: {{loss.alpha: {{choice: [3, 4]}}}}}}}}
fixed: {{{"loss.alpha: 1" if place == "fixed" else ""}}}
trials_per_arm: 1
"""
    wanted = f"arms.a.nuisance.loss.alpha is in {place} too. Leave one out."
    assert problems_of(tmp_path, text) == [wanted]


def test_arms_that_differ_by_what_is_tuned_are_different(tmp_path):
    text = """
question: Does tuning help?
arms:
  tuned: {nuisance: {loss.alpha: {uniform: [8, 64]}}}
  default: {}
trials_per_arm: 2
"""
    assert [arm.name for arm in read_study(tmp_path, text).searched_arms] == ["tuned"]


@pytest.mark.parametrize("key", ["loss.name=triplet", "optimizer.learning_rate=0.1"])
def test_set_may_not_override_what_the_study_varies(tmp_path, key):
    problems = problems_of(tmp_path, TWO_ARMS, key)
    name = key.split("=")[0]
    wanted = f"--set {name} would override a key that the study varies in arm 'triplet'"
    assert any(problem.startswith(wanted) for problem in problems)


def test_set_may_not_give_the_seed(tmp_path):
    (problem,) = problems_of(tmp_path, TWO_ARMS, "seed=3")
    assert problem.startswith("--set seed is set by the study")


def test_set_may_not_give_folds_that_the_study_gives(tmp_path):
    text = TWO_ARMS + "folds: 2\nfixed: {data.alias: two}"
    (problem,) = problems_of(tmp_path, text, "data.folds=3")
    assert problem.startswith("--set data.folds is set by the study")


def test_a_kind_chosen_by_set_that_drops_an_arms_knob_is_refused(tmp_path):
    problems = problems_of(tmp_path, ARMS, "loss.name=triplet")
    wanted = "arms a, b: loss.alpha has no effect, since a later layer chooses another loss.name."
    assert wanted in problems


def test_arms_may_differ_in_keys_that_do_not_change_the_prepared_data(tmp_path):
    text = """
question: q
arms: {bins: {data.quantize_bins: 4}, more: {data.quantize_bins: 8}}
fixed: {data.continuous_labels: [rotation]}
"""
    assert len(read_study(tmp_path, text).arms) == 2


CHOICES = "nuisance: {loss.alpha: {choice: [8, 16]}, loss.delta: {choice: [0, 0.1, 0.2]}}"
HEAD = "question: q\narms: {a: {model.width: 8}, b: {model.width: 16}}\n"
UNEVEN = """
question: q
arms:
  a: {scientific: {model.width: 8}, nuisance: {loss.alpha: {choice: [1, 2]}}}
  b: {scientific: {model.width: 16}, nuisance: {loss.alpha: {choice: [1, 2, 3]}}}
searcher: grid
"""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (HEAD + LEARNING_RATE, "trials_per_arm is missing; searcher: random needs"),
        (HEAD + "trials_per_arm: 3", "trials_per_arm=3 has no use, since no arm has nuisance"),
        (
            HEAD + LEARNING_RATE + "\nsearcher: grid",
            "nuisance.optimizer.learning_rate is a range, which searcher: grid cannot list.",
        ),
        (
            HEAD + CHOICES + "\nsearcher: grid\ntrials_per_arm: 4",
            "trials_per_arm must be the size of the grid, 6, or be left out. Got 4.",
        ),
        (UNEVEN, "nuisance must give every arm a grid of the same size"),
    ],
)
def test_a_search_without_an_equal_budget_is_refused(tmp_path, text, problem):
    (found,) = problems_of(tmp_path, text)
    assert found.startswith(problem)


def test_a_grid_may_state_its_size_or_omit_it(tmp_path):
    text = HEAD + CHOICES + "\nsearcher: grid\n"
    assert read_study(tmp_path, text).trials_per_arm == 6
    assert read_study(tmp_path, text + "trials_per_arm: 6").trials_per_arm == 6


def test_grids_of_one_size_over_different_knobs_are_an_equal_budget(tmp_path):
    study = read_study(tmp_path, UNEVEN.replace("[1, 2, 3]", "[5, 6]"))
    assert len(study.search_specs()) == 4


ROOT = Path(__file__).parents[3]
DATA_ARMS = "question: q\narms: {a: {loss.alpha: 1}, b: {loss.alpha: 2}}\n"


def test_a_study_that_would_overwrite_the_projects_dataset_is_refused(tmp_path):
    text = DATA_ARMS + "fixed: {data.images_per_class: 8, data.noise: 0.5, data.quantize_bins: 0}"
    (problem,) = problems_of(tmp_path, text, params="data: {images_per_class: 12}")
    assert problem == (
        "fixed.data.alias must name the study's own folder if it changes the prepared data, "
        "since preparing them would overwrite data/prepared/glyphs, which other studies "
        "read. Got 'glyphs' and fixed.data.images_per_class=8 (in the parameters: 12), "
        "fixed.data.noise=0.5 (in the parameters: 0.05). Choose another name, or leave these "
        "values out."
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (DATA_ARMS + "folds: 3", "Got 'glyphs' and folds=3 (in the parameters: 1)."),
        (
            DATA_ARMS + "fixed: {data.alias: glyphs, data.noise: 0}",
            "Got 'glyphs' and fixed.data.noise=0.0 (in the parameters: 0.05).",
        ),
        (
            "{question: q, arms: {a: {data.noise: 0}}, grid: {loss.alpha: [1, 2]}}",
            "Got 'glyphs' and arms.a-1.data.noise=0.0 (in the parameters: 0.05).",
        ),
    ],
)
def test_every_place_that_changes_the_data_is_named(tmp_path, text, found):
    (problem,) = problems_of(tmp_path, text)
    assert found in problem


def test_other_raw_images_need_another_folder(tmp_path):
    params = "data: {name: folder, alias: birds, raw: birds/}"
    (problem,) = problems_of(tmp_path, DATA_ARMS + "fixed: {data.raw: bees/}", params=params)
    assert "Got 'birds' and fixed.data.raw='bees/' (in the parameters: 'birds/')." in problem
    text = DATA_ARMS + "fixed: {data.raw: bees/, data.alias: bees}"
    assert read_study(tmp_path, text, params=params).arm_config("a").data.folder_name == "bees"


@pytest.mark.parametrize(
    "fixed",
    [
        "{data.alias: few, data.images_per_class: 8}",
        "{data.prepared_root: elsewhere, data.images_per_class: 8}",
        "{data.images_per_class: 24}",
        "{data.continuous_labels: [rotation], data.quantize_bins: 4, data.standardize_labels: no}",
        "{data.on_bad_image: fail, data.max_refused_fraction: 0}",
        "{data.alias: copy}",
    ],
)
def test_a_study_that_overwrites_nothing_is_valid(tmp_path, fixed):
    assert len(read_study(tmp_path, DATA_ARMS + f"fixed: {fixed}").arms) == 2


def test_what_set_changes_is_the_projects_own_data(tmp_path):
    text = DATA_ARMS + "fixed: {data.images_per_class: 8}"
    data = read_study(tmp_path, text, "data.images_per_class=4").arm_config("a").data
    assert data.images_per_class == 4
    own = DATA_ARMS + "fixed: {data.images_per_class: 8, data.alias: few}"
    (problem,) = problems_of(tmp_path, own, "data.alias=glyphs")
    assert "Got 'glyphs' and fixed.data.images_per_class=8" in problem


def test_a_profile_that_would_overwrite_the_dataset_is_found_without_being_selected(tmp_path):
    text = DATA_ARMS + "profiles: {smoke: {fixed: {data.max_classes: 9}}, folded: {folds: 2}}"
    smoke, folded = problems_of(tmp_path, text)
    assert smoke.startswith("profiles.smoke.fixed.data.alias must name the study's own folder")
    assert "profiles.smoke.fixed.data.max_classes=9 (in the parameters: 0)" in smoke
    assert "profiles.folded.folds=2 (in the parameters: 1)" in folded


def test_profiles_that_overwrite_each_others_data_are_refused(tmp_path):
    text = (
        DATA_ARMS
        + """
fixed: {data.alias: few, data.max_classes: 20}
profiles: {smoke: {fixed: {data.max_classes: 9}}, own: {fixed: {data.alias: x, data.noise: 0}}}
"""
    )
    assert problems_of(tmp_path, text) == [
        "profiles.smoke has another data.max_classes than the study itself under the same "
        "data.alias 'few', so each would overwrite the other's data. Set "
        "another profiles.smoke.fixed.data.alias."
    ]


def test_profiles_whose_data_differ_by_their_name_alone_are_refused(tmp_path):
    text = (
        DATA_ARMS
        + """
profiles:
  one: {fixed: {data.alias: x, data.noise: 0}}
  two: {fixed: {data.alias: y, data.noise: 0, training.epochs: 3}}
  three: {fixed: {data.alias: x, data.noise: 0}, seeds: [1]}
"""
    )
    first, second = problems_of(tmp_path, text)
    assert first.startswith("profiles.two.fixed.data.alias must be that of profiles.one, since")
    assert first.endswith("Got 'y' and 'x'.")
    assert second.startswith("profiles.three.fixed.data.alias must be that of profiles.two")


def test_arms_whose_data_differ_by_their_name_alone_are_refused(tmp_path):
    text = "{question: q, arms: {a: {data.alias: x}, b: {loss.alpha: 2}}}"
    assert problems_of(tmp_path, text) == [
        "arms.b has another data.alias than arm 'a' for the same data. The name of a folder "
        "changes nothing, and the data would be prepared twice. Put it into fixed, or leave it out."
    ]


@pytest.mark.parametrize("key", ["data.noise", "data.alias"])
def test_the_data_cannot_be_tuned(tmp_path, key):
    values = "[0.1, 0.2]" if key == "data.noise" else "[x, y]"
    text = DATA_ARMS + f"nuisance: {{{key}: {{choice: {values}}}}}\ntrials_per_arm: 2"
    wanted = f"nuisance.{key} cannot be tuned, since all trials of a study share one prepared data"
    assert any(problem.startswith(wanted) for problem in problems_of(tmp_path, text))
    own = "{question: q, trials_per_arm: 2, arms: {a: {nuisance: {%s: {choice: %s}}}}}"
    problems = problems_of(tmp_path, own % (key, values))
    assert any(problem.startswith(f"arms.a.{wanted}") for problem in problems)


def test_the_smoke_profile_of_the_main_study_has_its_own_data():
    project = load_project_config(ROOT / "params.yaml")
    study = load_study(ROOT / "studies" / "main.yaml", project, profile="smoke")
    path = study.arm_config(study.baseline).data.prepared_path
    assert path != project.trial.data.prepared_path
