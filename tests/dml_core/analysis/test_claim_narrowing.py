"""A claim over the arms that a profile runs."""

import pytest

from dml_core.analysis.claims import narrow_claim
from dml_core.studies.definition import Claim


def make_claim(**values) -> Claim:
    return Claim.model_validate({"text": "So it is.", **values})


def test_pairs_stay_or_go_as_one():
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
def test_a_claim_that_would_lose_a_side_is_left_as_it_is(values):
    claim = make_claim(**values)
    assert narrow_claim(claim, {"a"}) == (claim, [])


def test_one_side_alone_and_a_trend_are_narrowed():
    narrowed, lost = narrow_claim(make_claim(left={"arms": ["a", "b"]}), {"a"})
    assert (narrowed.left.arms, lost) == (("a",), ["b"])
    trend = {"key": "sampler.batch_size", "arms": ["a", "b", "c"]}
    narrowed, lost = narrow_claim(make_claim(trend=trend), {"a", "c"})
    assert (narrowed.trend.arms, lost) == (("a", "c"), ["b"])
