from pathlib import Path

import pytest

from dml_core.config import ConfigError
from dml_core.config.loading import load_project_config
from dml_core.studies.arm_checks import TrainingSize
from dml_core.studies.loading import check_batches, list_studies, load_study
from tests.references.written_studies import TWO_ARMS, make_project, problems_of, read_study

ROOT = Path(__file__).parents[3]

MANY_PROBLEMS = """
question: Which?
arms: {a: {loss.name: triplet, loss.margn: 1}, b: {loss.name: proxy_anchor}, "c d": {}}
fixed: {training.epochs: -1, seed: 3}
nuisance: {optimizer.learning_rate: {log_uniform: [0, 1e-2]}, optimizer.beta1: {uniform: [0, 2]}}
trials_per_arm: 0
seeds: [0, 1, 1]
sheduler: {name: asha}
figure: {kind: pie}
"""


def test_all_problems_are_told_at_once_with_file_and_key(tmp_path):
    problems = problems_of(tmp_path, MANY_PROBLEMS)
    starts = [
        "arms.c d must be a name",
        "nuisance.optimizer.learning_rate log_uniform must have low > 0",
        "trials_per_arm must be >= 1. Got 0",
        "seeds must differ, or one run counts as two. Got 1 more than once",
        "figure.kind must be one of 'line', 'lines', 'bar', 'heatmap' or 'matrices'. Got 'pie'",
        "sheduler is not a known parameter. Did you mean 'scheduler'?",
        "fixed.seed is set by the study: seeds lists the seeds of all trials",
        "arms.a: loss.margn is not a known parameter of loss.name=triplet. Did you mean 'loss.m",
        "fixed.training.epochs must be >= 1. Got -1",
        "nuisance.optimizer.beta1 must be < 1.0. Got 2.0",
    ]
    assert len(problems) == len(starts)
    for problem, start in zip(problems, starts, strict=True):
        assert problem.startswith(start)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("question: q", "arms (or grid) must name at least one arm. Got neither."),
        ("{question: q, arms: {}}", "arms (or grid) must name at least one arm. Got an empty"),
        ("{question: q, grid: {}}", "arms (or grid) must name at least one arm. Got an empty"),
        ("{question: q, grid: {loss.name: []}}", "grid.loss.name must be a list with at least"),
        ("arms: {a: {}}", "question is missing."),
        ("{question: q, arms: {a: {}}, seeds: []}", "seeds must be a list with at least one"),
        (
            "{question: q, arms: {a: {}}, arm: 1}",
            "arm is not a known parameter. Did you mean",
        ),
        ("{question: q, arms: {a: 3}}", "arms.a must be a mapping. Got 3"),
        (
            "{question: q, arms: {a: {scientific: {}, nuisans: {}}}}",
            "arms.a.nuisans is not a",
        ),
        ("{question: q, arms: {5: {}}}", "arms.5 must be text. Got 5 (int)."),
    ],
)
def test_a_malformed_file_is_refused(tmp_path, text, problem):
    problems = problems_of(tmp_path, text)
    assert len(problems) == 1
    assert problems[0].startswith(problem)


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.yaml.*\n.*does not exist"):
        load_study(tmp_path / "none.yaml", make_project(tmp_path))


def test_a_file_name_that_cannot_be_a_folder_is_refused(tmp_path):
    path = tmp_path / "my study.yaml"
    path.write_text(TWO_ARMS)
    with pytest.raises(ConfigError, match=r"file's name.*Got 'my study'\. Rename"):
        load_study(path, make_project(tmp_path))


SMOKE = (
    TWO_ARMS
    + """
profiles:
  smoke: {fixed: {training.epochs: 2, data.alias: folded}, trials_per_arm: 1, seeds: [9], folds: 2}
  one: {arms: [anchor], nuisance: {optimizer.weight_decay: {choice: [0, 0.1]}}, searcher: tpe}
"""
)


def test_a_profile_is_put_over_the_study_by_name(tmp_path):
    study = read_study(tmp_path, SMOKE, profile="smoke")
    assert (study.trials_per_arm, study.seeds, study.folds) == (1, (9,), 2)
    assert {spec.config.training.epochs for spec in study.search_specs()} == {2}
    assert read_study(tmp_path, SMOKE).seeds == (4, 7)


def test_the_quick_profile_is_the_file_itself(tmp_path):
    study = read_study(tmp_path, SMOKE, profile="quick")
    assert study == read_study(tmp_path, SMOKE)


def test_a_profile_of_the_files_own_name_is_refused(tmp_path):
    text = TWO_ARMS + "profiles: {quick: {seeds: [1]}}"
    assert problems_of(tmp_path, text) == [
        "profiles.quick is the name of the study itself and cannot be a profile. "
        "Put its values into the study."
    ]


def test_a_profile_may_keep_some_arms_and_add_ranges(tmp_path):
    study = read_study(tmp_path, SMOKE, profile="one")
    assert [arm.name for arm in study.arms] == ["anchor"]
    assert set(study.arms[0].space) == {"optimizer.learning_rate", "optimizer.weight_decay"}
    assert study.searcher == "tpe"


def test_an_unknown_profile_is_refused_with_the_nearest(tmp_path):
    assert problems_of(tmp_path, SMOKE, profile="smok") == [
        "profiles has no 'smok'. Did you mean 'smoke'? There are: smoke, one."
    ]


def test_a_profile_with_an_unknown_arm_or_seeds_twice_is_refused(tmp_path):
    text = TWO_ARMS + "profiles: {p: {arms: [ancor, triplet]}}"
    assert problems_of(tmp_path, text, profile="p") == [
        "profiles.p.arms must name arms. Got 'ancor'. Did you mean 'anchor'?"
    ]
    text = TWO_ARMS + "profiles: {p: {seeds: [1, 1]}}"
    assert problems_of(tmp_path, text)[0].startswith("profiles.p.seeds must differ")


def test_batches_are_checked_once_the_classes_are_known(tmp_path):
    text = TWO_ARMS + "fixed: {sampler.class_ratio: 0.02}\n"
    study = read_study(tmp_path, text)
    check_batches(study, TrainingSize(100, 800))
    with pytest.raises(ConfigError, match=r"at least two of the 60.*Got 0.02, which leaves 1.2"):
        check_batches(study, TrainingSize(60, 480))
    problems = problems_of(tmp_path, text, size=TrainingSize(60, 480))
    assert len(problems) == 1
    assert problems[0].startswith("fixed.sampler.class_ratio must leave at least two")


def test_studies_of_a_folder_are_listed_by_name(tmp_path):
    for name in ("b.yaml", "a.yml", "notes.md"):
        (tmp_path / name).write_text("")
    assert [path.name for path in list_studies(tmp_path)] == ["a.yml", "b.yaml"]
    assert list_studies(tmp_path / "none") == []


@pytest.mark.parametrize("path", list_studies(ROOT / "studies"), ids=lambda path: path.stem)
def test_every_study_that_ships_is_sound_with_each_of_its_profiles(path):
    project = load_project_config(ROOT / "params.yaml")
    study = load_study(path, project)
    for profile in study.definition.profiles:
        load_study(path, project, profile=profile)


def test_the_main_study_asks_about_all_four_axes_with_enough_classes():
    project = load_project_config(ROOT / "params.yaml")
    path = ROOT / "studies" / "main.yaml"
    study = load_study(path, project, size=TrainingSize(112, 2688))
    varied = {key for arm in study.arms for key in arm.layer}
    assert varied == {
        "loss.name", "model.embedding_dim", "sampler.batch_size", "sampler.class_ratio",
    }  # fmt: skip
    # Half of 64 classes are for the test, a quarter of the rest for validation.
    load_study(path, project, profile="smoke", size=TrainingSize(24, 192))
