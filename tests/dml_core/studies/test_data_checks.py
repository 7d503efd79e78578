from pathlib import Path

import pytest

from dml_core.config.loading import load_project_config
from dml_core.studies.loading import load_study
from tests.references.written_studies import problems_of, read_study

ROOT = Path(__file__).parents[3]
ARMS = "question: q\narms: {a: {loss.alpha: 1}, b: {loss.alpha: 2}}\n"


def test_a_study_that_would_replace_the_projects_dataset_is_refused(tmp_path):
    text = ARMS + "fixed: {data.images_per_class: 8, data.noise: 0.5, data.quantize_bins: 0}"
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
        (ARMS + "folds: 3", "Got 'glyphs' and folds=3 (in the parameters: 1)."),
        (
            ARMS + "fixed: {data.alias: glyphs, data.noise: 0}",
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


def test_other_raw_images_need_a_folder_of_their_own(tmp_path):
    params = "data: {name: folder, alias: birds, raw: birds/}"
    (problem,) = problems_of(tmp_path, ARMS + "fixed: {data.raw: bees/}", params=params)
    assert "Got 'birds' and fixed.data.raw='bees/' (in the parameters: 'birds/')." in problem
    text = ARMS + "fixed: {data.raw: bees/, data.alias: bees}"
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
def test_a_study_that_replaces_nothing_is_sound(tmp_path, fixed):
    assert len(read_study(tmp_path, ARMS + f"fixed: {fixed}").arms) == 2


def test_what_set_changes_is_the_projects_own_data(tmp_path):
    text = ARMS + "fixed: {data.images_per_class: 8}"
    data = read_study(tmp_path, text, "data.images_per_class=4").arm_config("a").data
    assert data.images_per_class == 4
    own = ARMS + "fixed: {data.images_per_class: 8, data.alias: few}"
    (problem,) = problems_of(tmp_path, own, "data.alias=glyphs")
    assert "Got 'glyphs' and fixed.data.images_per_class=8" in problem


def test_a_profile_that_would_replace_the_dataset_is_found_without_asking_for_it(tmp_path):
    text = ARMS + "profiles: {smoke: {fixed: {data.max_classes: 9}}, folded: {folds: 2}}"
    smoke, folded = problems_of(tmp_path, text)
    assert smoke.startswith("profiles.smoke.fixed.data.alias must name the study's own folder")
    assert "profiles.smoke.fixed.data.max_classes=9 (in the parameters: 0)" in smoke
    assert "profiles.folded.folds=2 (in the parameters: 1)" in folded


def test_profiles_that_replace_each_others_data_are_refused(tmp_path):
    text = (
        ARMS
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
        ARMS
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
    text = ARMS + f"nuisance: {{{key}: {{choice: {values}}}}}\ntrials_per_arm: 2"
    wanted = f"nuisance.{key} cannot be tuned, since all trials of a study share one prepared data"
    assert any(problem.startswith(wanted) for problem in problems_of(tmp_path, text))
    own = "{question: q, trials_per_arm: 2, arms: {a: {nuisance: {%s: {choice: %s}}}}}"
    problems = problems_of(tmp_path, own % (key, values))
    assert any(problem.startswith(f"arms.a.{wanted}") for problem in problems)


def test_the_smoke_profile_of_the_main_study_has_data_of_its_own():
    project = load_project_config(ROOT / "params.yaml")
    study = load_study(ROOT / "studies" / "main.yaml", project, profile="smoke")
    path = study.arm_config(study.baseline).data.prepared_path
    assert path != project.trial.data.prepared_path
