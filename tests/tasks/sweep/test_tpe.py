import pytest

from dml_core.trials.spec import TrialRecord
from tasks.sweep.tpe import TpeTrials
from tests.references.tiny_studies import tiny_study

STUDY = """
question: Which loss?
arms:
  anchor:
    scientific: {loss.name: proxy_anchor}
    nuisance: {loss.alpha: {uniform: [8, 64]}, sampler.samples_per_class: {choice: [2, 4]}}
  triplet:
    scientific: {loss.name: triplet}
    nuisance: {loss.margin: {uniform: [0.05, 0.5]}}
nuisance: {optimizer.learning_rate: {log_uniform: [0.0001, 0.1]}}
searcher: tpe
trials_per_arm: 12
seeds: [0]
"""


def make_record(spec, score, status="finished"):
    return TrialRecord(spec, status, "", 3, 3, score, {}, "", 1.0)


@pytest.fixture
def study(tmp_path):
    return tiny_study(tmp_path, tmp_path, STUDY)


def run(source, judge):
    specs = []
    while (spec := source.next()) is not None:
        specs.append(spec)
        source.tell(make_record(spec, judge(spec)))
    return specs


def test_each_arm_gets_its_own_knobs_and_the_same_number_of_tries_in_turn(study):
    specs = run(TpeTrials(study), lambda spec: 0.5)
    assert [spec.arm for spec in specs] == ["anchor", "triplet"] * 12
    for spec in specs:
        own = (
            {"loss.alpha", "sampler.samples_per_class"} if spec.arm == "anchor" else {"loss.margin"}
        )
        assert set(spec.values) == {"optimizer.learning_rate"} | own
        assert getattr(spec.config.loss, "alpha", None) == spec.values.get("loss.alpha")


def test_later_tries_are_nearer_to_the_best_than_the_first(study):
    def judge(spec):
        return 1 - abs(spec.values.get("loss.margin", 0.3) - 0.3)

    margins = [s.values["loss.margin"] for s in run(TpeTrials(study), judge) if s.arm == "triplet"]
    errors = [abs(margin - 0.3) for margin in margins]
    assert sum(errors[6:]) < sum(errors[:6])


def test_equal_results_in_equal_order_give_equal_values(study):
    first, second = (run(TpeTrials(study), lambda s: s.values["optimizer.learning_rate"])
                     for _ in range(2))  # fmt: skip
    assert first == second


def test_a_resumed_search_keeps_what_was_handed_out_and_goes_on_as_an_unbroken_one(study):
    def judge(spec):
        return 1 - spec.values["optimizer.learning_rate"]

    whole = run(TpeTrials(study), judge)
    assert run(TpeTrials(study, known=whole[:9]), judge) == whole


def test_the_search_accepts_every_status(study):
    source = TpeTrials(study)
    ends = [("finished", 0.4), ("pruned", 0.2), ("pruned", None), ("diverged", None)]
    ends += [("collapsed", 0.1), ("failed", None)] * 20
    count = 0
    while (spec := source.next()) is not None:
        status, score = ends[count]
        source.tell(make_record(spec, score, status))
        count += 1
    assert count == 24


def test_the_search_learns_from_a_try_once_all_its_folds_have_ended(tmp_path):
    study = tiny_study(tmp_path, tmp_path, STUDY, data__max_classes=32, data__folds=2)
    specs = run(TpeTrials(study), lambda spec: 0.5)
    assert len(specs) == 2 * 12 * 2
    assert specs[0].values == specs[1].values
    assert [spec.config.data.fold for spec in specs[:2]] == [0, 1]
