import itertools

import numpy as np
import pytest

from dml_core.analysis.recommendation import Untrained, find_beaten, name_chance, recommend
from dml_core.analysis.summary import summarize
from dml_core.analysis.verdicts import compare_arms
from dml_core.studies.metrics import PLAIN, SHARE


def by_seed(*values):
    return dict(enumerate(values))


def advise(arms, *, untrained=None, unit=SHARE, **options):
    comparisons = compare_arms(
        arms, **{k: v for k, v in options.items() if k == "higher_is_better"}
    )
    return recommend(
        arms,
        comparisons,
        metric="recall_at_1",
        unit=unit,
        smallest_effect=0.01,
        untrained=untrained,
        **options,
    )


HIGH, MID, LOW = by_seed(0.80, 0.81, 0.79), by_seed(0.74, 0.75, 0.745), by_seed(0.60, 0.62, 0.61)


def test_one_arm_ahead_of_all_is_recommended_with_its_lead():
    found = advise({"low": LOW, "high": HIGH, "mid": MID})
    assert (found.kind, found.best) == ("use", "high")
    assert found.lead == pytest.approx(0.055)
    low, high = found.interval
    assert low < 0.055 < high
    assert found.text == (
        f"Use high: recall_at_1 80.0 %, 5.5 points ahead of the runner-up mid "
        f"({100 * low:.1f} to {100 * high:.1f})."
    )


def test_where_less_is_better_the_lowest_is_recommended():
    found = advise({"low": LOW, "high": HIGH, "mid": MID}, unit=PLAIN, higher_is_better=False)
    assert found.best == "low"
    assert found.text.startswith(
        "Use low: recall_at_1 0.6100, 0.1350 ahead of the runner-up mid (0."
    )


def test_arms_that_do_not_differ_enough_are_offered_together():
    arms = {
        "a": by_seed(0.7000, 0.7005, 0.7010),
        "b": by_seed(0.7010, 0.7015, 0.7020),
        "c": by_seed(0.6, 0.601, 0.602),
    }
    found = advise(arms)
    assert (found.kind, found.best, found.equals) == ("any", "b", ("a",))
    assert found.text == (
        "Use any of b and a: they differ by less than 1 point. b has the best recall_at_1, 70.1 %."
    )


def test_an_open_question_says_how_to_close_it():
    arms = {"a": by_seed(0.70, 0.74, 0.66), "b": by_seed(0.75, 0.79, 0.71)}
    arms["c"] = by_seed(0.30, 0.31, 0.32)
    found = advise(arms, remedy="list more seeds")
    assert (found.kind, found.best, found.undecided) == ("open", "b", ("a",))
    assert found.text == (
        f"Use b for now: recall_at_1 75.0 %. a cannot be told from it yet; about "
        f"{found.seeds_needed} seeds an arm would decide (list more seeds)."
    )


def test_untrained_features_on_top_mean_do_not_train():
    found = advise({"low": LOW, "mid": MID}, untrained=Untrained("bare features", 0.775))
    assert found.kind == "do not train"
    assert found.text == (
        "Do not train: no arm beats bare features (77.5 %). The best arm is mid with 74.5 %."
    )


def test_an_arm_that_does_not_beat_the_untrained_features_is_marked():
    summary = summarize({"low": LOW, "high": HIGH}, untrained=Untrained("bare features", 0.7))
    low, high = summary.rows
    assert (low.beats_untrained, high.beats_untrained) == (False, True)
    assert low.text.endswith("; worse than no training")
    assert summary.recommendation.kind == "use"


def test_whether_training_helps_at_all_may_be_open():
    arms = {"a": by_seed(0.70, 0.76, 0.64), "c": by_seed(0.3, 0.31, 0.32)}
    found = advise(arms, untrained=Untrained("pixels", 0.69))
    assert found.text.endswith("Whether it beats pixels (69.0 %) is open too.")
    assert find_beaten(arms, 0.69, higher_is_better=True) == {"a": None, "c": False}


def test_without_scores_nothing_is_recommended():
    assert advise({"a": {}, "b": {}}).kind == "nothing"
    assert advise({"a": HIGH, "b": {}}).best == "a"
    assert advise({"a": HIGH}).text.startswith("Use a: recall_at_1 80.0 %. It is the only arm")


def test_no_baseline_changes_the_recommendation_or_the_verdict_of_a_pair():
    """The flower-like case: other baselines used to turn all verdicts."""
    random = np.random.default_rng(9)
    means = {"a": 0.70, "b": 0.70, "c": 0.71, "d": 0.74, "e": 0.74, "f": 0.78}
    arms = {arm: by_seed(*random.normal(mean, 0.012, 3)) for arm, mean in means.items()}
    texts, verdicts = set(), {}
    for baseline in arms:
        references = {arm: baseline for arm in arms if arm != baseline}
        summary = summarize(arms, references=references)
        texts.add(summary.recommendation.text)
        for pair in itertools.combinations(arms, 2):
            verdicts.setdefault(pair, set()).add(summary.comparisons[pair].verdict)
        for row in summary.rows:
            if row.comparison is not None:
                pair = tuple(sorted((row.arm, row.comparison.right)))
                assert summary.comparisons[row.arm, row.comparison.right] == row.comparison
                assert len(verdicts[pair]) == 1
    assert len(texts) == 1
    assert all(len(found) == 1 for found in verdicts.values())
    assert {"better"} in verdicts.values() or {"worse"} in verdicts.values()


@pytest.mark.parametrize(
    ("chance", "words"),
    [
        (0.999, "almost certainly better"),
        (0.96, "very likely better"),
        (0.9, "likely better"),
        (0.7, "rather better than not"),
        (0.5, "as likely better as worse"),
        (0.25, "rather worse than not"),
        (0.1, "likely worse"),
        (0.02, "very likely worse"),
        (0.0, "almost certainly worse"),
    ],
)
def test_chances_have_words(chance, words):
    assert name_chance(chance) == words
