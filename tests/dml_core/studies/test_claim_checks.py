import pytest

from tests.references.observed_studies import GRID
from tests.references.written_studies import problems_of, read_study

LOSSES = "question: q\ngrid: {loss.name: [triplet, contrastive], model.embedding_dim: [8, 16]}\n"
MEASURED = "measures: [gradients, step_cost]\nfixed: {evaluation.class_distances: 4}\n"


def with_claim(text, claim):
    return f"{text}claims: [{{text: c, {claim}}}]"


@pytest.mark.parametrize(
    "claim",
    [
        "left: {arms: [batch_size-90]}, right: {arms: [batch_size-30, batch_size-60]}",
        "left: {arms: [batch_size-90], metric: test.map_at_r}, by: 0.5",
        "left: {arms: [batch_size-90], metric: last.validation.map_at_r}",
        "left: {arms: [batch_size-90], metric: train.loss}",
        "left: {arms: [batch_size-90], metric: mean.test.recall_at_*}",
        "left: {arms: [batch_size-90], metric: cost.step_seconds}, right: {arms: [batch_size-30], "
        "metric: cost.step_seconds}, ratio: true",
        "left: {arms: [batch_size-90], metric: first.gradient.positive}",
        "left: {arms: [batch_size-90], metric: last.table.hardest_distances}",
        "trend: {key: sampler.batch_size}",
        "trend: {key: sampler.batch_size, arms: [batch_size-30, batch_size-90]}",
    ],
)
def test_claims_that_can_be_judged_are_accepted(tmp_path, claim):
    read_study(tmp_path, with_claim(GRID + MEASURED, claim))


@pytest.mark.parametrize(
    ("claim", "problem"),
    [
        ("left: {arms: [batch_size-9]}", "claims.0.left.arms must name arms. Got 'batch_size-9'."),
        (
            "left: {arms: [batch_size-90]}, right: {arms: [none]}",
            "claims.0.right.arms must name arms. Got 'none'. The arms: batch_size-30,",
        ),
        (
            "left: {arms: [batch_size-90], metric: test.recal_at_1}",
            "claims.0.left.metric must be a metric that every arm computes. Got 'test.recal_at_1'",
        ),
        (
            "left: {arms: [batch_size-90], metric: cost.step_seconds}",
            "claims.0.left.metric 'cost.step_seconds' needs measures: [step_cost]",
        ),
        (
            "left: {arms: [batch_size-90], metric: last.test.recall_at_1}",
            "is one number already. Got 'last.test.recall_at_1'. Leave out 'last'.",
        ),
        (
            "left: {arms: [batch_size-90], metric: test.recall_at_*}",
            "must be one number. Got 'test.recall_at_*'. Take one of first.test.recall_at_*, last",
        ),
        ("trend: {key: sampler.batch_sise}", "is None in arm 'batch_size-30'. Did you mean 'sampl"),
        ("trend: {key: loss.name}", "must have a number in every arm of the trend. Got 'l"),
        ("trend: {key: loss.alpha}", "claims.0.trend.key must be a key that the arms of the trend"),
        (
            "trend: {key: sampler.batch_size, arms: [batch_size-30]}",
            "must be a key that the arms of the trend vary. Got 'sampler.batch_size'.",
        ),
        (
            "trend: {key: sampler.batch_size, metric: test.x}",
            "claims.0.trend.metric must be a",
        ),
        ("expect: higher", "claims.0 needs exactly one of left and trend. Got neither."),
        ("left: {arms: []}", "claims.0.left.arms must be a list with at least one"),
        (
            "left: {arms: [batch_size-30]}, expect: within",
            "claims.0 expect: within needs by, the largest difference that counts as none",
        ),
        ("left: {arms: [batch_size-30]}, ratio: true", "claims.0 ratio needs a right side to div"),
    ],
)
def test_claims_that_cannot_be_judged_are_refused(tmp_path, claim, problem):
    (found,) = problems_of(tmp_path, with_claim(GRID, claim))
    assert problem in found


def test_only_the_arms_of_a_side_have_to_give_its_metric(tmp_path):
    arms = "arms: {a: {evaluation.binary: true}, b: {}}\n"
    text = with_claim("question: q\n" + arms, "left: {arms: [%s], metric: test.binary_map_at_r}")
    read_study(tmp_path, text % "a")
    assert "which arm 'b' does not compute" in problems_of(tmp_path, text % "b")[0]


def test_problems_of_all_claims_are_told_with_those_of_figures(tmp_path):
    text = f"{LOSSES}figure: {{y: test.x}}\nclaims:\n" + (
        "  - {text: a, left: {arms: [x]}}\n  - {text: b, trend: {key: loss.name}}\n"
    )
    found = [problem.split(" ")[0] for problem in problems_of(tmp_path, text)]
    assert found == ["figure.y", "claims.0.left.arms", "claims.1.trend.key"]


def test_a_claim_may_name_an_arm_that_a_profile_leaves_out(tmp_path):
    claims = (
        "claims:\n  - {text: a, left: {arms: [batch_size-90]}}\n"
        "  - {text: b, trend: {key: sampler.batch_size}}\n"
    )
    text = f"{GRID}{claims}profiles: {{smoke: {{arms: [batch_size-30]}}}}"
    assert len(read_study(tmp_path, text, profile="smoke").arms) == 1
