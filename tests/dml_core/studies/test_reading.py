from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dml_core.config import ConfigError
from dml_core.studies.loading import load_study, read_definition
from tests.references.written_studies import make_project

SOUND = {
    "question": "q",
    "arms": {"a": {"loss.alpha": 1}, "b": {"loss.alpha": 2}},
    "nuisance": {"loss.delta": {"uniform": [0, 1]}},
    "trials_per_arm": 2,
}


def test_a_sound_file_has_no_problems():
    study, problems = read_definition(SOUND)
    assert problems == []
    assert list(study.arms) == ["a", "b"]


def test_what_is_malformed_is_left_out_and_the_rest_kept():
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


def test_a_file_that_lost_its_arms_does_not_also_say_that_it_has_none():
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
