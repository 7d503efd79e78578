"""How many trials of a study other studies have trained, before the study runs."""

from dml_core.config.loading import ProjectConfig
from dml_core.trials.store import LocalStore
from tasks.study import StudyContext, StudyRequest
from tasks.sweep.node_data import count_shared_trials, list_known_trials, open_ledger
from tests.dml_core.trials.test_ledger import finish
from tests.references.tiny_studies import tiny_pipeline, tiny_study
from tests.references.tiny_trials import prepare_tiny

ARMS = """
question: q
arms: {a: {model.embedding_dim: 4}, b: {model.embedding_dim: 8}}
seeds: [0, 1]
"""
TUNED = ARMS + "nuisance: {loss.alpha: {choice: [8, 16]}}\ntrials_per_arm: 2\n"


def make_context(prepared, folder, name, text):
    study = tiny_study(prepared, folder, text, name=name)
    pipeline = tiny_pipeline(sweep__results_root=str(folder / "results"))
    project = ProjectConfig(study.arm_config("a"), pipeline, {}, {})
    return StudyContext(StudyRequest(study=name), project, study)


def test_a_plan_knows_how_many_trials_another_study_has_trained(tmp_path):
    prepare_tiny(tmp_path / "prepared")
    first = make_context(tmp_path / "prepared", tmp_path, "first", ARMS)
    assert count_shared_trials(first) == 0
    assert not first.working_folder.exists()
    first.working_folder.mkdir(parents=True)
    ray = first.project.pipeline.ray
    ledger = open_ledger(first.working_folder, ray, store=LocalStore(first.trials_folder))
    for spec in first.study.repeat_specs({"b": {}}):
        finish(ledger, spec)
    second = make_context(tmp_path / "prepared", tmp_path, "second", ARMS)
    assert count_shared_trials(second) == 2
    # Its own trials have ended and are not shared.
    assert count_shared_trials(first) == 0


def test_only_trials_that_depend_on_no_result_are_known(tmp_path):
    def count(text):
        return len(list_known_trials(tiny_study(tmp_path, tmp_path, text)))

    assert count(ARMS) == 4
    assert count(TUNED) == 4
    assert count(TUNED + "searcher: tpe") == 0
    assert count(TUNED + "scheduler: {name: asha}") == 0
