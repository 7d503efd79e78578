"""Tests of reading study files."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dml_core.config import ConfigError
from dml_core.config.loading import load_project_config, put_over
from dml_core.studies.arm_checks import TrainingSize
from dml_core.studies.loading import check_batches, load_study, read_definition
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


def test_all_problems_are_reported_at_once_with_file_and_key(tmp_path):
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


def test_a_missing_file_is_reported(tmp_path):
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


def test_a_profile_is_applied_by_name(tmp_path):
    study = read_study(tmp_path, SMOKE, profile="smoke")
    assert (study.trials_per_arm, study.seeds, study.folds) == (1, (9,), 2)
    assert {study.arm_config(arm.name).training.epochs for arm in study.arms} == {2}
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


def test_without_a_profile_only_the_quick_arms_run_and_a_profile_has_them_all(tmp_path):
    text = TWO_ARMS + "quick_arms: [triplet]\nprofiles: {paper: {seeds: [1]}}\n"
    assert [arm.name for arm in read_study(tmp_path, text).arms] == ["triplet"]
    assert len(read_study(tmp_path, text, profile="paper").arms) == 2
    assert problems_of(tmp_path, TWO_ARMS + "quick_arms: [triplet, ancor]") == [
        "quick_arms must name arms. Got 'ancor'. Did you mean 'anchor'?"
    ]


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


SHIPPED = sorted((ROOT / "studies").glob("*.yaml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_study_is_valid_with_each_of_its_profiles(path):
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


SOUND = {
    "question": "q",
    "arms": {"a": {"loss.alpha": 1}, "b": {"loss.alpha": 2}},
    "nuisance": {"loss.delta": {"uniform": [0, 1]}},
    "trials_per_arm": 2,
}


def test_a_valid_file_has_no_problems():
    study, problems = read_definition(SOUND)
    assert problems == []
    assert list(study.arms) == ["a", "b"]


def test_malformed_entries_are_removed_and_the_rest_is_kept():
    content = {
        **SOUND,
        "seeds": "all",
        "nuisance": {**SOUND["nuisance"], "loss.alpha": {"uniform": [1]}},
    }
    study, problems = read_definition(content)
    assert len(problems) == 2
    assert list(study.nuisance) == ["loss.delta"]
    assert study.seeds == (0, 1, 2, 3, 4)
    assert content["seeds"] == "all"


def test_removed_arms_are_not_also_reported_as_missing():
    _, problems = read_definition({"question": "q", "arms": {"a": 3, "b": 4}})
    assert problems == [
        "arms.a must be a mapping. Got 3 (int).",
        "arms.b must be a mapping. Got 4 (int).",
    ]


_leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
_words = st.sampled_from(
    [
        "scientific",
        "nuisance",
        "uniform",
        "choice",
        "loss.name",
        "loss.alpha",
        "triplet",
        "smoke",
        "arms",
        "fixed",
        "seeds",
        "data",
        "x",
        "compare_with",
    ]
)
_values = st.recursive(
    _leaves | _words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_words, inner, max_size=3),
    max_leaves=8,
)
_fields = st.sampled_from(
    [
        "arms",
        "grid",
        "fixed",
        "nuisance",
        "seeds",
        "baseline",
        "figure",
        "profiles",
        "scheduler",
        "trials_per_arm",
        "searcher",
        "folds",
        "question",
        "unknown",
    ]
)


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(changes=st.dictionaries(_fields, _values, max_size=3))
def test_any_content_gives_a_study_or_a_clean_error(tmp_path, monkeypatch, changes):
    project = make_project(tmp_path)
    content = {**SOUND, **changes}
    monkeypatch.setattr("dml_core.studies.loading.read_yaml_mapping", lambda _: content)
    try:
        study = load_study(tmp_path / "asked.yaml", project)
    except ConfigError as error:
        assert error.problems  # noqa: PT017
    else:
        assert len(study.digest) == 64


OTHER_KINDS = """
question: q
arms: {a: {}}
fixed:
  data: {name: glyphs, alias: drawn, images_per_class: 9, validation_fraction: 0.4}
  sampler: {batch_size: 30, class_ratio: 0.5}
profiles:
  paper:
    fixed:
      data: {name: cub200, alias: birds}
      sampler: {name: shuffled}
seeds: [0]
"""


def test_keys_that_the_chosen_kind_does_not_have_are_dropped(tmp_path):
    config = read_study(tmp_path, OTHER_KINDS, profile="paper").arm_config("a")
    assert (config.data.name, config.data.folder_name) == ("cub200", "birds")
    assert config.data.validation_fraction == 0.4
    assert (config.sampler.name, config.sampler.batch_size) == ("shuffled", 30)


def test_without_a_chosen_kind_every_key_stays():
    lower = {"data.images_per_class": 9, "sampler.class_ratio": 0.5}
    upper = {"sampler.batch_size": 3, "data.images_per_class": 8}
    assert put_over(lower, upper) == {**lower, **upper}


def test_a_problem_of_a_profile_names_the_profile(tmp_path):
    text = "question: q\narms: {a: {}}\nprofiles: {small: {fixed: {model.widht: 4}}}\n"
    with pytest.raises(ConfigError, match=r"as profile 'small' has 1 problem(?s:.*)model.widht"):
        read_study(tmp_path, text, profile="small")
