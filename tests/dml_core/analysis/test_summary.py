"""Tests of the answer of a study."""

import numpy as np
import pytest
from scipy import stats

from dml_core.analysis.intervals import adjust_holm, estimate_mean
from dml_core.analysis.summary import render_markdown, summarize


def by_seed(*values):
    return dict(enumerate(values))


BASE = by_seed(0.70, 0.71, 0.69, 0.70, 0.72)
UP = by_seed(0.75, 0.77, 0.74, 0.75, 0.76)
NEAR = by_seed(0.71, 0.70, 0.70, 0.69, 0.73)


def test_better_worse_and_cannot_tell():
    down = {seed: 1.4 - score for seed, score in UP.items()}
    summaries = summarize({"base": BASE, "up": UP, "down": down, "near": NEAR}, baseline="base")
    assert [summary.verdict for summary in summaries] == [
        "baseline", "better", "worse", "cannot tell",
    ]  # fmt: skip
    assert summaries[1].text == "better"
    assert summaries[3].text.startswith("cannot tell: about ")
    assert summaries[3].text.endswith(" seeds would be needed for 0.5 points")


def test_the_numbers_are_scipys():
    summary = summarize({"base": BASE, "up": UP}, baseline="base")[1]
    up, base = list(UP.values()), list(BASE.values())
    reference = stats.ttest_rel(up, base)
    assert summary.difference.p_value == pytest.approx(reference.pvalue)
    assert summary.difference.adjusted_p_value == pytest.approx(reference.pvalue)
    assert summary.difference.interval == pytest.approx(tuple(reference.confidence_interval()))
    own = stats.ttest_1samp(up, 0).confidence_interval()
    assert summary.interval == pytest.approx(tuple(own))
    assert summary.mean == pytest.approx(np.mean(up))


def test_several_arms_are_corrected_for():
    alone = summarize({"base": BASE, "up": UP}, baseline="base")[1].difference
    arms = {"base": BASE, "up": UP, **{f"near{i}": NEAR for i in range(9)}}
    among = summarize(arms, baseline="base")[1].difference
    assert among.p_value == alone.p_value
    assert among.adjusted_p_value == pytest.approx(10 * alone.p_value)
    assert among.interval == alone.interval


def test_the_seeds_needed_count_the_correction():
    alone = summarize({"base": BASE, "near": NEAR}, baseline="base")[1]
    arms = {"base": BASE, **{f"near{i}": NEAR for i in range(10)}}
    assert summarize(arms, baseline="base")[1].seeds_needed > alone.seeds_needed


def test_each_arm_is_compared_with_its_own_reference():
    scores = {"base": BASE, "up": UP, "up2": {s: v + 0.001 * (s % 2) for s, v in UP.items()}}
    summaries = summarize(scores, baseline="base", references={"up2": "up"})
    assert summaries[2].difference.reference == "up"
    assert summaries[2].difference.mean == pytest.approx(0.0004)
    assert summaries[1].difference.reference == "base"


def test_only_seeds_that_both_have_are_paired():
    arm = {1: 0.9, 2: 0.5, 9: 0.1}
    summary = summarize({"base": BASE, "arm": arm}, baseline="base")[1]
    assert (summary.num_seeds, summary.difference.num_pairs) == (3, 2)
    assert summary.mean == pytest.approx(0.5)
    # Seeds 1 and 2: 0.9 - 0.71 and 0.5 - 0.69.
    assert summary.difference.mean == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("scores", "text"),
    [
        ({}, "cannot tell: no seed has a score"),
        ({77: 0.5}, "cannot tell: no seed in common with the arm it is compared with"),
        ({0: 0.5}, "cannot tell: one seed gives no interval, two or more are needed"),
        (BASE, "cannot tell: equal with every seed"),
        (
            {seed: score + 0.1 for seed, score in BASE.items()},
            "cannot tell: every seed gave the same difference, so its spread is unknown",
        ),
        (
            {seed: score + 1e-5 * (-1) ** seed for seed, score in BASE.items()},
            "cannot tell: 0.5 points would likely have shown with these 5 seeds",
        ),
        (
            {seed: score + 0.9 * (-1) ** seed for seed, score in BASE.items()},
            "cannot tell: more than 10,000 seeds would be needed for 0.5 points",
        ),
    ],
)
def test_an_undecided_arm_has_a_reason(scores, text):
    summary = summarize({"base": BASE, "arm": scores}, baseline="base")[1]
    assert (summary.verdict, summary.text) == ("cannot tell", text)


def test_one_seed_has_a_mean_without_an_interval():
    base, arm = summarize({"base": {0: 0.4}, "arm": {0: 0.5}}, baseline="base")
    assert (base.mean, base.interval, base.deviation) == (0.4, None, None)
    assert arm.difference.mean == pytest.approx(0.1)
    assert (arm.difference.interval, arm.seeds_needed) == (None, None)


def test_lower_is_better_for_distances():
    knobs = {"higher_is_better": False, "is_share": False, "resolution": 0.02}
    summaries = summarize({"base": BASE, "up": UP, "near": NEAR}, baseline="base", **knobs)
    assert summaries[1].verdict == "worse"
    assert summaries[2].text.endswith("0.02") or "0.02 would likely" in summaries[2].text


def test_scores_that_are_not_finite_are_refused():
    with pytest.raises(ValueError, match=r"must be finite.*Got nan"):
        summarize({"base": BASE, "arm": {0: float("nan")}}, baseline="base")


@pytest.mark.parametrize(
    "named", [{"baseline": "bas"}, {"baseline": "base", "references": {"up": "bas"}}]
)
def test_an_unknown_arm_to_compare_with_is_refused(named):
    with pytest.raises(ValueError, match=r"Got 'bas'\. Did you mean 'base'"):
        summarize({"base": BASE, "up": UP}, **named)


def simulate_study(truths, *, num_seeds, count, seed):
    """(count, arms, seeds) scores; seeds shift all arms of a study alike, as data order does."""
    random = np.random.default_rng(seed)
    shared = random.normal(0, 0.01, size=(count, 1, num_seeds))
    own = random.normal(0, 0.008, size=(count, len(truths), num_seeds))
    return np.array(truths)[None, :, None] + shared + own


def judge_many(scores, alpha=0.05):
    """The verdicts of many studies at once, by the functions that summarize uses: -1, 0 or 1."""
    estimate = estimate_mean(scores[:, 1:] - scores[:, :1])
    return np.where(adjust_holm(estimate.p_value) <= alpha, np.sign(estimate.mean), 0)


def test_the_simulated_verdicts_are_those_of_summarize():
    scores = simulate_study([0.7, 0.7, 0.73, 0.66], num_seeds=5, count=40, seed=5)
    words = {"worse": -1, "cannot tell": 0, "better": 1}
    for study, verdicts in zip(scores, judge_many(scores), strict=True):
        arms = {str(place): by_seed(*values.tolist()) for place, values in enumerate(study)}
        summaries = summarize(arms, baseline="0")[1:]
        assert [words[summary.verdict] for summary in summaries] == verdicts.tolist()


@pytest.mark.parametrize(("num_arms", "num_seeds"), [(2, 3), (5, 5), (16, 3), (16, 10)])
def test_without_true_differences_any_verdict_is_given_in_at_most_5_percent(num_arms, num_seeds):
    # 20,000 studies: three standard errors are 0.46 %.
    scores = simulate_study([0.7] * num_arms, num_seeds=num_seeds, count=20_000, seed=7)
    false_share = (judge_many(scores) != 0).any(axis=1).mean()
    assert false_share <= 0.05 + 0.0046
    # A procedure that never says anything would pass above.
    assert false_share > 0.01


def test_with_some_true_differences_false_verdicts_stay_below_5_percent():
    truths = [0.7, 0.7, 0.7, 0.75, 0.65, 0.705]
    signs = np.sign(np.array(truths[1:]) - truths[0])
    verdicts = judge_many(simulate_study(truths, num_seeds=6, count=20_000, seed=8))
    is_false = (verdicts != 0) & (verdicts != signs)
    assert is_false.any(axis=1).mean() <= 0.05 + 0.0046
    # The large differences, five points each, are nearly always found.
    assert (verdicts[:, 2] == 1).mean() > 0.95
    assert (verdicts[:, 3] == -1).mean() > 0.95


def test_without_the_correction_false_verdicts_would_be_common():
    scores = simulate_study([0.7] * 16, num_seeds=5, count=5_000, seed=9)
    estimate = estimate_mean(scores[:, 1:] - scores[:, :1])
    assert (estimate.p_value <= 0.05).any(axis=1).mean() > 0.2


def test_the_paired_interval_holds_the_true_difference_in_95_of_100_simulations():
    scores = simulate_study([0.7, 0.72], num_seeds=5, count=100_000, seed=10)
    estimate = estimate_mean(scores[:, 1] - scores[:, 0])
    covered = ((estimate.low <= 0.02) & (estimate.high >= 0.02)).mean()
    assert 0.947 < covered < 0.953


TABLE_BASE = {0: 0.70, 1: 0.71, 2: 0.69}
TABLE_UP = {0: 0.75, 1: 0.765, 2: 0.742}


def test_each_arm_has_a_row_in_points_with_intervals_and_verdict():
    summaries = summarize(
        {"base": TABLE_BASE, "up": TABLE_UP, "none": {}, "one": {0: 0.5}}, baseline="base"
    )
    lines = render_markdown(summaries, metric="test.recall_at_1").splitlines()
    assert lines[0] == "| arm | seeds | test.recall_at_1 | difference to base | verdict |"
    # 70 plus or minus 4.302653 x 1 / sqrt(3) = 2.48.
    assert lines[2] == "| base | 3 | 70.00 [67.52, 72.48] |  | baseline |"
    assert lines[3].startswith("| up | 3 | 75.23 [")
    assert "| +5.23 [+4.61, +5.86] | better |" in lines[3]
    assert lines[4] == "| none | 0 | none | none | cannot tell: no seed has a score |"
    assert lines[5].startswith("| one | 1 | 50.00 (no interval) | -20.00 (no interval) | cannot")
    assert "among all 1 comparisons" in lines[7]


def test_several_references_are_named_in_their_rows():
    scores = {"base": TABLE_BASE, "up": TABLE_UP, "more": {0: 0.8, 1: 0.82, 2: 0.79}}
    summaries = summarize(scores, baseline="base", references={"more": "up"})
    table = render_markdown(summaries, metric="r")
    assert "| arm | seeds | r | difference | verdict |" in table
    assert "] to up |" in table
    assert "] to base |" in table


def test_distances_are_shown_as_they_are():
    summaries = summarize({"base": TABLE_BASE, "up": TABLE_UP}, baseline="base", is_share=False)
    table = render_markdown(summaries, metric="distance", is_share=False)
    assert "| 0.7000 [0.6752, 0.7248] |" in table
    assert "points" not in table


def test_a_bar_in_a_name_does_not_break_the_table():
    table = render_markdown(summarize({"a|b": TABLE_BASE}, baseline="a|b"), metric="r")
    assert table.splitlines()[2].startswith("| a\\|b | 3 |")
