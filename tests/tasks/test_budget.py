"""When a sweep must end so that an answer is there within the budget, with a clock of the test."""

from types import SimpleNamespace

import pytest

from tasks import budget as module
from tasks.budget import STOP_SECONDS, BudgetSpent, SeedBudget, SweepLimit


@pytest.fixture
def now(monkeypatch):
    """The seconds of the clock, and a study with 8 models whose evaluation took 16 s."""
    seconds = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: seconds[0])
    monkeypatch.setattr(module, "read_stage_seconds", lambda context: {"evaluate": 16.0})
    return seconds


def study_of(num_models):
    return SimpleNamespace(study=SimpleNamespace(num_repeats=num_models))


def test_a_sweep_ends_so_early_that_evaluation_and_report_fit(now):
    budget = SeedBudget(minutes=10, reserve_seconds=40, started=100.0)
    assert budget.seconds_of_sweep(study_of(8)) == 600 - 40 - STOP_SECONDS
    now[0] += 300
    assert budget.seconds_of_sweep(study_of(8)) == 300 - 40 - STOP_SECONDS
    now[0] += 290
    # Too late for any training: only what is finished can still become an answer.
    assert budget.seconds_of_sweep(study_of(8)) == 0


def test_the_time_after_the_first_look_counts_for_the_next_one_and_grows_with_its_models(now):
    budget = SeedBudget(minutes=10, reserve_seconds=40, started=100.0).with_measured(
        study_of(8), 50
    )
    assert budget.seconds_after_sweep(study_of(8)) == STOP_SECONDS + 50
    # 2 s of the evaluation for each of 4 models more, in the study's file or of the next look.
    assert budget.seconds_after_sweep(study_of(12)) == STOP_SECONDS + 50 + 4 * 2
    assert budget.seconds_after_sweep(study_of(8), num_added=4) == STOP_SECONDS + 50 + 4 * 2


def test_without_a_reserve_the_study_runs_to_its_end(now):
    for budget in (SeedBudget(), SeedBudget(minutes=10)):
        assert budget.seconds_of_sweep(study_of(8)) is None
        assert budget.with_measured(study_of(8), 50) == budget
        assert budget.seconds_after_sweep(study_of(8), num_added=4) == 16


def test_a_sweep_whose_time_is_over_says_how_far_it_came(now):
    limit = SweepLimit(60, lambda: (5, 12), clock=lambda: now[0])
    now[0] += 59
    limit.check()
    now[0] += 1
    message = r"^not enough time for an answer: 5 of 12 trainings .* the same command resumes\.$"
    with pytest.raises(BudgetSpent, match=message):
        limit.check()
    now[0] += 1e9
    SweepLimit(None, lambda: (5, 12), clock=lambda: now[0]).check()
