"""Which arms get more seeds."""

from dml_core.analysis.claims import Judgement
from dml_core.analysis.looks import find_open_arms, list_new_trials, plan_next_look
from dml_core.analysis.summary import summarize
from dml_core.studies.added_seeds import AddedSeeds
from dml_core.studies.loading import load_study
from tests.references.written_studies import TWO_ARMS, make_project

HIGH = {0: 0.801, 1: 0.799, 2: 0.802}
LOW = {0: 0.501, 1: 0.499, 2: 0.502}
NOISY = {0: 0.74, 1: 0.81, 2: 0.78}


def make_claim(*arms):
    return Judgement("a claim", "cannot tell", None, None, 3, "", open_arms=arms)


def test_only_arms_that_cannot_be_told_from_the_best_are_open():
    summary = summarize({"high": HIGH, "noisy": NOISY, "low": LOW, "none": {}})
    assert find_open_arms(summary) == {"high", "noisy"}


def test_an_open_comparison_with_a_reference_opens_both_arms():
    scores = {"high": HIGH, "low": LOW, "other": {0: 0.45, 1: 0.55, 2: 0.5}}
    assert find_open_arms(summarize(scores)) == set()
    summary = summarize(scores, references={"other": "low"})
    assert find_open_arms(summary) == {"low", "other"}


def test_the_arms_of_an_open_claim_are_open():
    summary = summarize({"high": HIGH, "low": LOW})
    assert find_open_arms(summary, [make_claim("low"), make_claim()]) == {"low"}


def test_the_next_look_adds_seeds_to_open_arms_until_none_is_left(tmp_path):
    path = tmp_path / "asked.yaml"
    path.write_text(TWO_ARMS)
    project = make_project(tmp_path)
    open_scores = summarize({"triplet": NOISY, "anchor": HIGH})
    study = load_study(path, project, added=AddedSeeds(sizes=(2, 3, 5)))
    planned = plan_next_look(study, open_scores, most_seeds=20)
    assert planned.seeds == {"triplet": (8,), "anchor": (8,)}
    assert list_new_trials(study, planned) == {"triplet": 1, "anchor": 1}
    grown = load_study(path, project, added=planned)
    assert plan_next_look(grown, open_scores, most_seeds=20).seeds["anchor"] == (8, 9, 10)
    assert plan_next_look(grown, open_scores, most_seeds=4) is None
    decided = summarize({"triplet": LOW, "anchor": HIGH})
    assert plan_next_look(study, decided, most_seeds=20) is None
