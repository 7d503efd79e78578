"""Tests of the judgement of claims."""

import math
from dataclasses import replace

import numpy as np
import pytest

from dml_core.analysis.claims import judge_claims
from dml_core.analysis.narrowing import narrow_claim
from dml_core.analysis.observations import Observations, answer_metric
from dml_core.analysis.verdicts import compare_arms
from dml_core.studies.definition import Claim
from tests.references.observed_studies import observe, read_claims
from tests.references.written_studies import read_study

LARGE, SMALL = "batch_size-90", "batch_size-30"
MORE = f"left: {{arms: [{LARGE}]}}, right: {{arms: [{SMALL}]}}"
TREND = "trend: {key: sampler.batch_size}"
MEASURES = "measures: [step_cost]\n"


def judge_all(study, observations):
    scores = observations.scalars(answer_metric(study))
    comparisons = compare_arms({arm.name: scores.get(arm.name, {}) for arm in study.arms})
    return judge_claims(study, observations, comparisons)


def judge(folder, claim, observations, **options):
    study = read_claims(folder, claim, **options)
    (judgement,) = judge_all(study, observations)
    assert judgement.text == "claim 0"
    return judgement


LARGER = {LARGE: [0.62, 0.63, 0.625], SMALL: [0.60, 0.59, 0.595]}


def test_the_difference_has_the_interval_of_welchs_test(tmp_path):
    found = judge(tmp_path, MORE, observe(LARGER))
    # Means 62.5 and 59.5, deviations 0.5 each: error 0.5 * sqrt(2 / 3) = 0.408 with 4 degrees of
    # freedom, whose t is 2.776; half width 1.133.
    assert found.mean == pytest.approx(0.03)
    assert found.interval == pytest.approx((0.01867, 0.04133), abs=1e-5)
    assert (found.verdict, found.num_seeds) == ("supported", 3)
    assert found.explanation == (
        "supported: test.recall_at_1 of batch_size-90 less batch_size-30 is +3.0 points "
        "(95 % interval +1.9 to +4.1, 3 seeds), and all of it is above zero."
    )


def test_a_claim_of_one_pair_has_the_verdict_of_the_pair(tmp_path):
    scores = {LARGE: [0.6205, 0.6206], SMALL: [0.62, 0.6201], "batch_size-60": [0.5, 0.51]}
    found = judge(tmp_path, MORE, observe(scores))
    pairs = compare_arms({arm: dict(enumerate(values)) for arm, values in scores.items()})
    assert pairs[LARGE, SMALL].verdict == "no difference"
    assert found.verdict == "contradicted"
    assert found.explanation.endswith("which is too small to matter.")


def test_a_claim_of_one_pair_has_the_interval_of_the_pair(tmp_path):
    sizes = [30, 40, 50, 60, 70, 80, 90]
    random = np.random.default_rng(3)
    # Six or more arms: the shift that a seed gives to all of them is taken out of the intervals.
    table = random.normal(0.6, 0.01, size=(7, 3)) + random.normal(0, 0.05, size=3)
    scores = {f"batch_size-{s}": row.tolist() for s, row in zip(sizes, table, strict=True)}
    text = f"question: q\ngrid: {{sampler.batch_size: {sizes}}}\nclaims: [{{text: c, {MORE}}}]\n"
    study = read_study(tmp_path, text)
    (found,) = judge_all(study, observe(scores))
    pairs = compare_arms({arm: dict(enumerate(values)) for arm, values in scores.items()})
    assert found.interval == pytest.approx(pairs[LARGE, SMALL].interval)


def test_what_stands_alone_and_not_among_many_is_open(tmp_path):
    # Each interval leaves out zero, and eleven others say nothing.
    scores = {LARGE: [0.63, 0.67, 0.65], SMALL: [0.60, 0.62, 0.58]}
    more = f"left: {{arms: [{LARGE}], metric: test.map_at_r}}, by: 0.5"
    study = read_claims(tmp_path, f"{MORE}, by: 0.0001", *[more] * 11)
    observed = observe(scores)
    for arm, by_seed in observed.scores.items():
        for seed, each in by_seed.items():
            each["map_at_r"] = [0.3, 0.5, 0.8][seed] + (0.01 if arm == LARGE else 0.0)
    first = judge_all(study, observed)[0]
    low, _ = first.interval
    assert low > 0
    assert first.verdict == "cannot tell"
    assert first.explanation.endswith(
        "which does not stand among all claims of the study. About 5 seeds an arm would decide."
    )
    assert first.open_arms == (LARGE, SMALL)


@pytest.mark.parametrize(
    ("rule", "verdict", "end"),
    [
        ("expect: higher", "supported", "all of it is above zero."),
        ("expect: higher, by: 0.01", "supported", "all of it is above 1 points."),
        ("expect: higher, by: 0.02", "cannot tell", "only a part of it is above 2 points."),
        ("expect: higher, by: 0.05", "contradicted", "none of it is above 5 points."),
        ("expect: lower", "contradicted", "none of it is below zero."),
        ("expect: within, by: 0.05", "supported", "all of it is within 5 points of zero."),
        (
            "expect: within, by: 0.03",
            "cannot tell",
            "only a part of it is within 3 points of zero.",
        ),
        ("expect: within, by: 0.01", "contradicted", "none of it is within 1 points of zero."),
    ],
)
def test_the_rule_of_the_claim_decides(tmp_path, rule, verdict, end):
    # The interval of the test above: 1.9 to 4.1 points.
    found = judge(tmp_path, f"{MORE}, {rule}", observe(LARGER))
    assert found.verdict == verdict
    assert end in found.explanation


def test_lower_is_higher_turned_round(tmp_path):
    scores = {LARGE: LARGER[SMALL], SMALL: LARGER[LARGE]}
    found = judge(tmp_path, f"{MORE}, expect: lower, by: 0.01", observe(scores))
    assert found.verdict == "supported"
    assert found.explanation.endswith("all of it is below -1 points.")


def test_several_arms_of_a_side_are_averaged(tmp_path):
    claim = f"left: {{arms: [{LARGE}, batch_size-60]}}, right: {{arms: [{SMALL}]}}"
    scores = {LARGE: [0.9, 0.8], "batch_size-60": [0.7, 0.8], SMALL: [0.5, 0.4]}
    # Means 0.85 and 0.75, less 0.45
    assert judge(tmp_path, claim, observe(scores)).mean == pytest.approx(0.35)


def test_a_ratio_is_told_in_percent_and_costs_in_their_units(tmp_path):
    sides = (
        f"left: {{arms: [{LARGE}], metric: cost.step_seconds}}, "
        f"right: {{arms: [{SMALL}], metric: cost.step_seconds}}, "
    )
    seconds = {LARGE: {0: 0.015, 1: 0.016}, SMALL: {0: 0.010, 1: 0.010}}
    observed = Observations(measured_scalars={"cost.step_seconds": seconds})
    found = judge(tmp_path, f"{sides} ratio: true", observed, more=MEASURES)
    assert found.mean == pytest.approx(0.55)
    assert "relative to batch_size-30 is +55.0 % (95 %" in found.explanation
    found = judge(tmp_path, f"{sides} by: 0.001", observed, more=MEASURES)
    assert "is +5.50 ms (95 % interval" in found.explanation
    assert found.explanation.endswith("above 1 ms. About 3 seeds an arm would decide.")


def test_a_ratio_to_zero_cannot_be_told(tmp_path):
    found = judge(tmp_path, f"{MORE}, ratio: true", observe({LARGE: [0.5, 0.6], SMALL: [0.0, 0.1]}))
    assert found.verdict == "cannot tell"
    assert found.explanation == "cannot tell: the right side is zero, so there is no ratio."


def test_without_a_right_side_the_value_itself_is_judged(tmp_path):
    claim = f"left: {{arms: [{LARGE}]}}, by: 0.9"
    found = judge(tmp_path, claim, observe({LARGE: [0.95, 0.96, 0.95]}))
    assert found.verdict == "supported"
    assert (
        "test.recall_at_1 of batch_size-90 is 95.3 % (95 % interval 93.9 to 96.8, 3 seeds), "
        in (found.explanation)
    )


def test_a_trend_is_the_slope_over_ranks(tmp_path):
    # Ranks 0, 1, 2, whatever the distances of 30, 60 and 90: slopes 0.1 and 0.15 - 0.02
    scores = {SMALL: [0.1, 0.12], "batch_size-60": [0.2, 0.2], LARGE: [0.3, 0.38]}
    found = judge(tmp_path, TREND, observe(scores))
    assert found.mean == pytest.approx(0.115)
    assert "the change of test.recall_at_1 for each step of sampler.batch_size is +11.5 points" in (
        found.explanation
    )


def test_a_slope_is_that_of_least_squares(tmp_path):
    scores = {SMALL: [0.1, 0.3], "batch_size-60": [0.25, 0.35], LARGE: [0.5, 0.7]}
    points = [(rank, value) for rank, arm in enumerate(scores) for value in scores[arm]]
    slope = np.polyfit(*zip(*points, strict=True), 1)[0]
    assert judge(tmp_path, TREND, observe(scores)).mean == pytest.approx(slope)


@pytest.mark.parametrize(
    ("claim", "scores", "reason"),
    [
        (MORE, {LARGE: [0.5], SMALL: [0.4]}, "needs two seeds. Got 1."),
        (MORE, {LARGE: [0.5, 0.6]}, "arm batch_size-30 has no test.recall_at_1."),
        (TREND, {LARGE: [0.5, 0.6], SMALL: [0.4, 0.5]}, "arm batch_size-60 has no test.recall_at"),
    ],
)
def test_what_is_missing_is_named(tmp_path, claim, scores, reason):
    found = judge(tmp_path, claim, observe(scores))
    assert (found.verdict, found.interval) == ("cannot tell", None)
    assert found.explanation.startswith(f"cannot tell: {reason}")


def test_an_arm_that_the_profile_leaves_out_was_not_run(tmp_path):
    more = f"profiles: {{smoke: {{arms: [{LARGE}]}}}}"
    found = judge(tmp_path, MORE, observe({LARGE: [0.5, 0.6]}), more=more, profile="smoke")
    assert found.explanation == "cannot tell: arm batch_size-30 was not run."
    found = judge(tmp_path, TREND, observe({LARGE: [0.5, 0.6]}), more=more, profile="smoke")
    assert (
        found.explanation == "cannot tell: a trend needs two values of sampler.batch_size. Got 1."
    )


def test_all_seeds_of_both_sides_count(tmp_path):
    found = judge(tmp_path, MORE, observe({LARGE: [0.5, 0.6, None], SMALL: [0.4, 0.4, 0.1]}))
    assert (found.num_seeds, found.mean) == (2, pytest.approx(0.25))


def test_a_ratio_is_taken_of_the_seeds_that_both_sides_have(tmp_path):
    scores = {LARGE: [0.5, None], SMALL: [None, 0.5]}
    found = judge(tmp_path, f"{MORE}, ratio: true", observe(scores))
    assert found.explanation == "cannot tell: the two sides have no seed in common."


def test_equal_seeds_tell_nothing_of_the_spread(tmp_path):
    found = judge(tmp_path, MORE, observe({LARGE: [1.0, 1.0], SMALL: [1.0, 1.0]}))
    assert found.verdict == "cannot tell"
    assert found.explanation.endswith(
        "is +0.0 points with each of 2 seeds, so its spread is unknown."
    )


def test_memory_is_counted_so_equal_rounds_decide(tmp_path):
    sides = [f"{{arms: [{arm}], metric: cost.memory_mib}}" for arm in (LARGE, SMALL)]
    memory = {LARGE: {0: 12.5, 1: 12.5}, SMALL: {0: 10.0, 1: 10.0}}
    observed = Observations(measured_scalars={"cost.memory_mib": memory})
    claim = f"left: {sides[0]}, right: {sides[1]}"
    found = judge(tmp_path, claim, observed, more=MEASURES)
    assert found.verdict == "supported"
    assert "is +2.5 MiB (95 % interval +2.5 to +2.5, 2 seeds)" in found.explanation


def test_claims_go_by_the_figures_first_metric_unless_they_name_one(tmp_path):
    study = read_claims(tmp_path, MORE, more="figure: {y: [test.map_at_r, test.recall_at_1]}\n")
    scores = {LARGE: [0.5, 0.7], SMALL: [0.4, 0.4]}
    assert judge_all(study, observe(scores, "map_at_r"))[0].mean == pytest.approx(0.2)


def simulate(folder, claim, *, difference, num_seeds, deviation=0.01, rounds=1000):
    """Judges a claim on made-up seeds and returns the share of each verdict."""
    study = read_claims(folder, claim)
    random = np.random.default_rng(5)
    verdicts = []
    for _ in range(rounds):
        shared = random.normal(0.6, 0.002, num_seeds)
        arms = {
            arm: (shared + shift * difference + random.normal(0, deviation, num_seeds)).tolist()
            for shift, arm in enumerate((SMALL, "batch_size-60", LARGE))
        }
        verdicts.append(judge_all(study, observe(arms))[0].verdict)
    return {verdict: verdicts.count(verdict) / rounds for verdict in set(verdicts)}


# At a true rate of 2.5 %, 4 % of 1,000 rounds is three standard deviations away; of 300, 5.2 %.
RARE = 0.04


@pytest.mark.parametrize("num_seeds", [2, 3, 5])
def test_no_true_difference_is_seldom_judged_to_be_one(tmp_path, num_seeds):
    shares = simulate(tmp_path, MORE, difference=0.0, num_seeds=num_seeds)
    assert 0.0 < shares["supported"] < RARE


def test_no_true_trend_is_seldom_judged_to_be_one(tmp_path):
    shares = simulate(tmp_path, TREND, difference=0.0, num_seeds=3, rounds=300)
    assert shares.get("supported", 0.0) < 0.052


def test_a_difference_at_the_limit_is_seldom_judged_to_be_beyond_or_within_it(tmp_path):
    # Two steps of 0.01 between the smallest and the largest.
    for rule in ("by: 0.02", "expect: within, by: 0.02"):
        shares = simulate(tmp_path, f"{MORE}, {rule}", difference=0.01, num_seeds=3)
        assert shares.get("supported", 0.0) < RARE
        assert shares.get("contradicted", 0.0) < RARE


def test_large_differences_are_found_and_small_ones_are_within(tmp_path):
    found = simulate(tmp_path, MORE, difference=0.1, num_seeds=3, rounds=200)
    assert found["supported"] > 0.95
    wrong = simulate(tmp_path, f"{MORE}, expect: lower", difference=0.1, num_seeds=3, rounds=200)
    assert wrong["contradicted"] > 0.95
    within = f"{MORE}, expect: within, by: 0.1"
    found = simulate(tmp_path, within, difference=0.0, num_seeds=3, rounds=200)
    assert found["supported"] > 0.9


def test_scores_that_are_not_finite_count_as_missing(tmp_path):
    observed = observe({LARGE: [0.5, math.nan], SMALL: [0.4, 0.4]})
    assert judge(tmp_path, MORE, observed).explanation == "cannot tell: needs two seeds. Got 1."


def test_a_study_without_claims_has_no_judgements(tmp_path):
    study = read_claims(tmp_path, MORE)
    none = replace(study, definition=study.definition.model_copy(update={"claims": ()}))
    assert judge_all(none, observe({})) == []


def make_claim(**values) -> Claim:
    return Claim.model_validate({"text": "So it is.", **values})


def test_pairs_are_kept_or_removed_as_a_whole():
    claim = make_claim(left={"arms": ["a-64", "a-512"]}, right={"arms": ["b-64", "b-512"]})
    narrowed, lost = narrow_claim(claim, {"a-64", "a-512", "b-512"})
    assert (narrowed.left.arms, narrowed.right.arms) == (("a-512",), ("b-512",))
    assert lost == ["a-64", "b-64"]


def test_sides_of_other_lengths_keep_what_is_run():
    claim = make_claim(left={"arms": ["a"]}, right={"arms": ["b", "c"]})
    narrowed, lost = narrow_claim(claim, {"a", "c"})
    assert (narrowed.left.arms, narrowed.right.arms, lost) == (("a",), ("c",), ["b"])


@pytest.mark.parametrize(
    "values",
    [
        {"left": {"arms": ["a"]}, "right": {"arms": ["b"]}},
        {"left": {"arms": ["b"]}},
        {"trend": {"key": "sampler.batch_size", "arms": ["b", "c"]}},
        {"trend": {"key": "sampler.batch_size"}},
    ],
)
def test_a_claim_that_would_lose_a_side_is_unchanged(values):
    claim = make_claim(**values)
    assert narrow_claim(claim, {"a"}) == (claim, [])


def test_one_side_alone_and_a_trend_are_narrowed():
    narrowed, lost = narrow_claim(make_claim(left={"arms": ["a", "b"]}), {"a"})
    assert (narrowed.left.arms, lost) == (("a",), ["b"])
    trend = {"key": "sampler.batch_size", "arms": ["a", "b", "c"]}
    narrowed, lost = narrow_claim(make_claim(trend=trend), {"a", "c"})
    assert (narrowed.trend.arms, lost) == (("a", "c"), ["b"])


def test_an_arm_that_was_not_run_is_named_with_the_profiles_that_run_it(tmp_path):
    more = (
        f"quick_arms: [{LARGE}]\nprofiles: {{smoke: {{}}, paper: {{}}, cars: {{arms: [{LARGE}]}}}}"
    )
    found = judge(tmp_path, MORE, observe({LARGE: [0.5, 0.6]}), more=more)
    assert found.explanation == (
        "cannot tell: arm batch_size-30 was not run. These profiles run it: paper."
    )
