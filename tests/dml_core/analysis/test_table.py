from dml_core.analysis.summary import render_markdown, summarize

BASE = {0: 0.70, 1: 0.71, 2: 0.69}
UP = {0: 0.75, 1: 0.765, 2: 0.742}


def test_one_line_an_arm_in_points_with_intervals_and_verdict():
    summaries = summarize({"base": BASE, "up": UP, "none": {}, "one": {0: 0.5}}, baseline="base")
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
    scores = {"base": BASE, "up": UP, "more": {0: 0.8, 1: 0.82, 2: 0.79}}
    summaries = summarize(scores, baseline="base", references={"more": "up"})
    table = render_markdown(summaries, metric="r")
    assert "| arm | seeds | r | difference | verdict |" in table
    assert "] to up |" in table
    assert "] to base |" in table


def test_distances_are_shown_as_they_are():
    summaries = summarize({"base": BASE, "up": UP}, baseline="base", is_share=False)
    table = render_markdown(summaries, metric="distance", is_share=False)
    assert "| 0.7000 [0.6752, 0.7248] |" in table
    assert "points" not in table


def test_a_bar_in_a_name_does_not_break_the_table():
    table = render_markdown(summarize({"a|b": BASE}, baseline="a|b"), metric="r")
    assert table.splitlines()[2].startswith("| a\\|b | 3 |")
