"""Looks that the budget does not let finish, on made-up results."""

import json
import logging
from pathlib import Path

import pytest

from tasks.budget import BudgetSpent
from tasks.looks import take_back_seeds
from tasks.study import StudyRequest, load_context
from tests.references.made_up_results import make_results

STUDY = """
question: Which of two losses?
arms: {anchor: {loss.name: proxy_anchor}, triplet: {loss.name: triplet}}
seeds: [0, 1]
"""
REQUEST = StudyRequest(study="asked")
SPENT = BudgetSpent(
    "not enough time for an answer: 5 of 8 trainings are finished. The same resumes."
)


@pytest.fixture
def seeds(tmp_path, monkeypatch):
    """Writes the seeds of looks; the finished sweep has up to three for `anchor`."""
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text("")
    Path("studies").mkdir()
    Path("studies/asked.yaml").write_text(STUDY)

    def write(**added):
        plan = {"sizes": [2, 3, 6], "seeds": added}
        Path("studies/asked.seeds.json").write_text(json.dumps(plan))

    write(anchor=[2])
    make_results(REQUEST)
    return write


def test_a_look_that_the_budget_ends_leaves_the_seeds_of_the_look_before(seeds, caplog):
    caplog.set_level(logging.INFO)
    seeds(anchor=[2, 3, 4, 5], triplet=[2, 3, 4, 5])
    assert take_back_seeds(REQUEST, SPENT)
    added = load_context(REQUEST).study.added
    assert added.seeds == {"anchor": (2,)}
    # The next look is the one that was planned, so it resumes the same trials.
    assert added.sizes == (2, 3, 6)
    assert "the answer is of 3 seeds an arm at most. For the next look, 5 of 8 tr" in caplog.text
    assert not take_back_seeds(REQUEST, SPENT)


def test_nothing_is_taken_back_before_the_first_answer(seeds):
    seeds(anchor=[2, 3])
    study = Path("studies/asked.yaml")
    # A study with more seeds than the finished sweep had.
    study.write_text(STUDY.replace("[0, 1]", "[0, 1, 7]"))
    assert not take_back_seeds(REQUEST, SPENT)
    study.write_text(STUDY)
    Path("results/asked/sweep/trials.parquet").unlink()
    assert not take_back_seeds(REQUEST, SPENT)
    assert load_context(REQUEST).study.added.seeds == {"anchor": (2, 3)}
