from dataclasses import replace

from tasks.tracking.identity import SweepFacts, SweepIdentity, make_trial_key
from tests.references.recorded_sweeps import FACTS, make_study


def test_another_state_of_data_code_or_libraries_is_another_sweep(tmp_path):
    study = make_study(tmp_path)
    known = SweepIdentity.of(study, FACTS)
    assert SweepIdentity.of(study, replace(FACTS)).key == known.key
    # A commit that changes nothing of the training code changes no number.
    assert SweepIdentity.of(study, replace(FACTS, git_commit="7654321")).key == known.key
    others = [
        replace(FACTS, datasets={"glyphs": ("other", "5b117")}),
        replace(FACTS, code="other"),
        replace(FACTS, libraries="torch 0.1"),
        SweepFacts(),
    ]
    keys = {SweepIdentity.of(study, facts).key for facts in others}
    assert len(keys) == len(others)
    assert known.key not in keys
    assert SweepIdentity.from_dict(known.to_dict()) == known


def test_the_same_id_with_another_configuration_is_another_trial(tmp_path):
    study = make_study(tmp_path)
    one = study.make_search_spec("dim_8", 0, {"optimizer.learning_rate": 0.001})
    other = study.make_search_spec("dim_8", 0, {"optimizer.learning_rate": 0.002})
    assert one.trial_id == other.trial_id
    key = make_trial_key(one.trial_id, one.config)
    assert key == make_trial_key(one.trial_id, one.config.model_copy())
    assert key != make_trial_key(other.trial_id, other.config)
    assert key != make_trial_key("another", one.config)
