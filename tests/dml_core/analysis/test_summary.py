import pytest

from dml_core.analysis.recommendation import Untrained
from dml_core.analysis.summary import render_markdown, summarize
from dml_core.studies.metrics import PLAIN


def by_seed(*values):
    return dict(enumerate(values))


BASE = by_seed(0.70, 0.71, 0.69)
UP = by_seed(0.75, 0.765, 0.742)
NEAR = by_seed(0.70, 0.73, 0.67)


def test_an_arm_is_compared_with_its_reference_and_with_the_best():
    summary = summarize({"base": BASE, "up": UP, "near": NEAR}, references={"up": "base"})
    base, up, near = summary.rows
    assert (base.verdict, up.verdict, near.verdict) == ("baseline", "better", "cannot tell")
    assert (up.comparison.right, up.to_best) == ("base", None)
    assert near.comparison.right == "up"
    assert base.to_best.verdict == "worse"
    assert base.text == "baseline"


def test_the_verdict_in_words_has_the_size_and_the_certainty():
    summary = summarize({"base": BASE, "up": UP, "near": NEAR}, references={"near": "base"})
    base, _, near = summary.rows
    assert base.text == "baseline"
    low, high = near.comparison.interval
    assert near.text == (
        f"cannot tell from base yet (+0.0 points, {100 * low:+.1f} to {100 * high:+.1f}): "
        f"as likely better as worse; about {near.comparison.seeds_needed} seeds would decide"
    )
    up = summarize({"base": BASE, "up": UP}, references={"up": "base"}).rows[1]
    assert up.text.startswith("almost certainly better than base (+5.2 points, +")


@pytest.mark.parametrize(
    ("scores", "text"),
    [
        ({}, "cannot tell from base: arm has no score"),
        (by_seed(0.5), "cannot tell from base: one seed has no spread; two or more are needed"),
    ],
)
def test_missing_seeds_are_named(scores, text):
    summary = summarize({"base": BASE, "arm": scores}, references={"arm": "base"})
    assert summary.rows[1].text == text


def test_no_difference_is_said_with_its_interval():
    near = by_seed(0.7001, 0.7002, 0.7003)
    summary = summarize({"base": by_seed(0.7, 0.7001, 0.7002), "near": near})
    assert summary.rows[0].text == (
        "no difference worth having to near (-0.0 points, -0.0 to +0.0): likely worse"
    )


def test_an_unknown_arm_to_compare_with_is_refused():
    with pytest.raises(ValueError, match=r"Got 'bas'\. Did you mean 'base'"):
        summarize({"base": BASE, "up": UP}, references={"up": "bas"})


def test_the_table_begins_with_the_recommendation_and_has_a_line_an_arm():
    arms = {"base": BASE, "up": UP, "none": {}, "one": {0: 0.5}}
    summary = summarize(arms, references={"up": "base"}, untrained=Untrained("pixels", 0.25))
    lines = render_markdown(summary, metric="test.recall_at_1").splitlines()
    assert lines[0] == summary.recommendation.text
    assert lines[2] == "| arm | seeds | test.recall_at_1 | verdict |"
    # 70 plus or minus 4.302653 x 1 / sqrt(3) = 2.48.
    assert lines[4] == "| base | 3 | 70.0 [67.5, 72.5] | baseline |"
    assert lines[5].startswith("| up | 3 | 75.2 [")
    assert lines[6] == "| none | 0 | none | cannot tell from up: none has no score |"
    assert lines[7].startswith("| one | 1 | 50.0 (no interval) | cannot tell from up: one seed")
    assert lines[8] == "| pixels | | 25.0 % | no training |"
    assert "all 6 pairs of arms" in lines[10]
    assert "less than 1 points" in lines[10]


def test_distances_are_shown_as_they_are():
    summary = summarize({"base": BASE, "up": UP}, unit=PLAIN)
    table = render_markdown(summary, metric="distance")
    assert "| 0.7000 [0.6752, 0.7248] |" in table
    assert "points" not in table


def test_a_bar_in_a_name_does_not_break_the_table():
    table = render_markdown(summarize({"a|b": BASE}), metric="r")
    assert table.splitlines()[4].startswith("| a\\|b | 3 |")
