import pytest
from pydantic import ValidationError

from dml_core.studies.definition import ArmDefinition, Profile, Study, apply_profile


def test_an_arm_is_written_short_or_long():
    short = ArmDefinition.model_validate({"loss.name": "triplet"})
    long = ArmDefinition.model_validate({"scientific": {"loss": {"name": "triplet"}}})
    assert short == long


def test_a_profile_changes_what_it_names_and_nothing_else():
    study = Study(question="q", arms={"a": {}}, fixed={"x": 1, "y": 2}, seeds=(1, 2))
    changed = apply_profile(study, Profile(fixed={"y": 3}, folds=4))
    assert changed.fixed == {"x": 1, "y": 3}
    assert (changed.folds, changed.seeds, changed.searcher) == (4, (1, 2), "random")
    assert study.fixed == {"x": 1, "y": 2}


def test_a_profile_may_name_another_baseline():
    study = Study(question="q", arms={"a": {}, "b": {}}, baseline="a")
    assert apply_profile(study, Profile(arms=("b",), baseline="b")).baseline == "b"
    assert apply_profile(study, Profile()).baseline == "a"


@pytest.mark.parametrize("name", ["", "a b", "../up", ".hidden", "a" * 81])
def test_names_that_cannot_be_folders_are_refused(name):
    with pytest.raises(ValidationError):
        Study(question="q", arms={name: {}})
