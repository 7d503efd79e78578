import dataclasses

import pytest

from dml_core.trials.winners import choose_winners
from tests.references.written_studies import TWO_ARMS, make_record, read_study


def records_of(study, scores, statuses=None):
    """Gives the search trials of an arm these scores in their order, and the others 0.5."""
    records = []
    for spec in study.search_specs():
        if spec.arm == "triplet":
            position = sum(record.spec.arm == "triplet" for record in records)
            status = statuses[position] if statuses else "finished"
            records.append(make_record(spec, scores[position], status))
        else:
            records.append(make_record(spec, 0.5))
    return records


def test_the_best_validation_score_wins(tmp_path):
    study = read_study(tmp_path, TWO_ARMS)
    records = records_of(study, [0.1, 0.7, 0.3])
    winner = choose_winners(study, records)["triplet"]
    assert (winner.number, winner.score, winner.reason) == (1, 0.7, "")
    assert winner.values == records[2].spec.values
    assert (winner.spent, winner.finished, winner.failed) == (3, 3, 0)


def test_of_equal_scores_the_lower_number_wins_in_any_order_of_records(tmp_path):
    study = read_study(tmp_path, TWO_ARMS)
    records = records_of(study, [0.1, 0.7, 0.7])
    assert choose_winners(study, records[::-1])["triplet"].number == 1


def test_only_finished_trials_count(tmp_path):
    study = read_study(tmp_path, TWO_ARMS)
    records = records_of(study, [0.9, 0.8, 0.3], ["pruned", "diverged", "finished"])
    winner = choose_winners(study, records)["triplet"]
    assert winner.number == 2
    assert (winner.finished, winner.pruned, winner.diverged, winner.spent) == (1, 1, 1, 3)


def test_a_score_that_is_not_a_number_never_wins(tmp_path):
    study = read_study(tmp_path, TWO_ARMS)
    records = records_of(study, [float("nan"), 0.2, None])
    assert choose_winners(study, records)["triplet"].number == 1


def test_an_arm_without_a_finished_trial_has_a_reason_instead_of_values(tmp_path):
    study = read_study(tmp_path, TWO_ARMS)
    records = records_of(study, [None] * 3, ["failed", "collapsed", "failed"])
    winner = choose_winners(study, records)["triplet"]
    assert (winner.values, winner.score, winner.number) == (None, None, None)
    assert winner.reason == (
        "no try finished with a score (1 collapsed, 2 failed); the first reason: it failed"
    )
    assert (winner.failed, winner.collapsed) == (2, 1)
    assert choose_winners(study, [])["anchor"].reason == "no trial ran"


def test_the_mean_over_folds_decides_and_a_missing_fold_disqualifies(tmp_path):
    study = read_study(tmp_path, TWO_ARMS + "folds: 2\nfixed: {data.alias: folded}\n")
    # Means 0.5, 0.55; the third try lacks a fold.
    scores = [0.9, 0.1, 0.5, 0.6, 0.99, None]
    winner = choose_winners(study, records_of(study, scores))["triplet"]
    assert winner.number == 1
    assert winner.score == pytest.approx(0.55)
    assert winner.spent == 6


def test_values_at_the_end_of_their_range_are_named(tmp_path):
    study = read_study(tmp_path, TWO_ARMS)
    record = records_of(study, [0.5, 0.5, 0.5])[0]
    for value, bound in ((1.1e-4, "low"), (9.5e-3, "high"), (1e-3, None)):
        spec = study.make_search_spec("triplet", 0, {"optimizer.learning_rate": value})
        winner = choose_winners(study, [dataclasses.replace(record, spec=spec)])["triplet"]
        assert winner.at_bound == ({"optimizer.learning_rate": bound} if bound else {})


def test_an_arm_without_a_search_wins_with_no_values(tmp_path):
    study = read_study(tmp_path, "{question: q, arms: {a: {}, b: {loss.alpha: 8}}}")
    winner = choose_winners(study, [])["a"]
    assert (winner.values, winner.score, winner.spent) == ({}, None, 0)


def test_records_of_repeats_are_ignored(tmp_path):
    study = read_study(tmp_path, TWO_ARMS)
    records = records_of(study, [0.1, 0.2, 0.3])
    repeats = study.repeat_specs({"triplet": records[0].spec.values})
    records += [make_record(spec, 0.9) for spec in repeats]
    assert choose_winners(study, records)["triplet"].number == 2


def test_two_records_of_one_trial_are_refused(tmp_path):
    study = read_study(tmp_path, TWO_ARMS)
    records = records_of(study, [0.1, 0.2, 0.3])
    with pytest.raises(ValueError, match="two records of trial 'triplet-0'"):
        choose_winners(study, [*records, records[0]])


def test_a_record_of_another_study_is_refused(tmp_path):
    study = read_study(tmp_path, TWO_ARMS)
    record = records_of(study, [0.1, 0.2, 0.3])[0]
    spec = dataclasses.replace(record.spec, arm="ancor")
    with pytest.raises(ValueError, match=r"no arm 'ancor'\. Did you mean 'anchor'"):
        choose_winners(study, [dataclasses.replace(record, spec=spec)])
