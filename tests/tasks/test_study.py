import pytest

from dml_core.config import ConfigError
from tasks.study import StudyRequest, load_context


@pytest.mark.parametrize(
    ("knobs", "name"),
    [
        ({}, "batch"),
        ({"profile": "quick"}, "batch"),
        ({"profile": "smoke"}, "batch@smoke"),
    ],
)
def test_each_profile_has_folders_of_its_own_and_quick_is_the_file_itself(knobs, name):
    assert StudyRequest(study="batch", **knobs).folder_name == name


def test_values_set_by_hand_have_folders_of_their_own_with_and_without_the_quick_profile():
    plain = StudyRequest(study="batch", overrides=("seed=1",)).folder_name
    assert plain.startswith("batch@")
    assert StudyRequest(study="batch", profile="quick", overrides=("seed=1",)).folder_name == plain


@pytest.mark.parametrize("name", ["../main", "/etc/main", "a/b", "..", "", "main\n", "<script>"])
def test_a_study_named_by_a_path_is_refused_before_anything_is_read(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"must be the name of a file in studies/"):
        load_context(StudyRequest(study=name))
