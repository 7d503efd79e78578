import pytest

from tests.references.written_studies import LEARNING_RATE, problems_of, read_study

CHOICES = "nuisance: {loss.alpha: {choice: [8, 16]}, loss.delta: {choice: [0, 0.1, 0.2]}}"
HEAD = "question: q\narms: {a: {model.width: 8}, b: {model.width: 16}}\n"
UNEVEN = """
question: q
arms:
  a: {scientific: {model.width: 8}, nuisance: {loss.alpha: {choice: [1, 2]}}}
  b: {scientific: {model.width: 16}, nuisance: {loss.alpha: {choice: [1, 2, 3]}}}
searcher: grid
"""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (HEAD + LEARNING_RATE, "trials_per_arm is missing; searcher: random needs"),
        (HEAD + "trials_per_arm: 3", "trials_per_arm=3 has no use, since no arm has nuisance"),
        (
            HEAD + LEARNING_RATE + "\nsearcher: grid",
            "nuisance.optimizer.learning_rate is a range, which searcher: grid cannot list.",
        ),
        (
            HEAD + CHOICES + "\nsearcher: grid\ntrials_per_arm: 4",
            "trials_per_arm must be the size of the grid, 6, or be left out. Got 4.",
        ),
        (UNEVEN, "nuisance must give every arm a grid of the same size"),
    ],
)
def test_a_search_without_an_equal_budget_is_refused(tmp_path, text, problem):
    (found,) = problems_of(tmp_path, text)
    assert found.startswith(problem)


def test_a_grid_may_say_its_size_or_leave_it_out(tmp_path):
    text = HEAD + CHOICES + "\nsearcher: grid\n"
    assert read_study(tmp_path, text).trials_per_arm == 6
    assert read_study(tmp_path, text + "trials_per_arm: 6").trials_per_arm == 6


def test_grids_of_one_size_over_different_knobs_are_an_equal_budget(tmp_path):
    study = read_study(tmp_path, UNEVEN.replace("[1, 2, 3]", "[5, 6]"))
    assert len(study.search_specs()) == 4
