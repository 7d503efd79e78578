import pytest

from tasks.context import StudyRequest


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
