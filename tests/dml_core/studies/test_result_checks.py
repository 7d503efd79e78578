"""Tests of the checks of figures and claims."""

import pytest

from tests.references.observed_studies import GRID
from tests.references.written_studies import problems_of, read_study

FIGURE_GRID = (
    "question: q\ngrid: {loss.name: [triplet, contrastive], model.embedding_dim: [8, 16]}\n"
)


@pytest.mark.parametrize(
    "figure",
    [
        "{}",
        "{kind: bar, group: loss.name}",
        "{kind: line, x: model.embedding_dim}",
        "{kind: lines, x: model.embedding_dim, group: loss.name, log_x: true}",
        "{kind: heatmap, x: model.embedding_dim, group: loss.name, y: test.nmi}",
        "{kind: lines, x: epoch, y: validation.map_at_r}",
        "{kind: lines, x: epoch, group: loss.name, y: [train.loss, validation.map_at_r]}",
        "{kind: line, x: seconds, y: [validation.recall_at_1, train.synthetic_fraction]}",
        "{kind: line, x: '*', y: test.recall_at_*}",
        "{kind: lines, x: '*', y: validation.recall_at_*, group: model.embedding_dim}",
        "{y: [test.recall_at_1, validation.map_at_r, train.loss]}",
    ],
)
def test_figures_that_can_be_drawn_are_accepted(tmp_path, figure):
    read_study(tmp_path, f"{FIGURE_GRID}figure: {figure}")
    read_study(tmp_path, f"{FIGURE_GRID}figures: [{figure}, {figure}]")


MEASURED = f"""{FIGURE_GRID}measures: [gradients, step_cost, search_cost]
fixed: {{evaluation.class_distances: 5}}
"""


@pytest.mark.parametrize(
    ("figure", "needs"),
    [
        ("{y: cost.step_seconds}", "'cost.step_seconds' needs measures: [step_cost]"),
        (
            "{y: [search.int8_recall_at_1, search.int8_bytes]}",
            "'search.int8_recall_at_1' needs measures: [search_cost]",
        ),
        (
            "{kind: lines, x: hardness, y: [gradient.positive, gradient.negative]}",
            "'gradient.positive' needs measures: [gradients]",
        ),
        (
            "{kind: matrices, y: table.hardest_distances}",
            "needs evaluation.class_distances, the number of classes in the table, and arm 'triple",
        ),
    ],
)
def test_measured_metrics_need_their_measure_in_the_study(tmp_path, figure, needs):
    read_study(tmp_path, f"{MEASURED}figure: {figure}")
    problems = problems_of(tmp_path, f"{FIGURE_GRID}figures: [{figure}]")
    assert problems[0].startswith("figures.0.y ")
    assert needs in problems[0]


@pytest.mark.parametrize(
    ("figure", "problem"),
    [
        ("{y: gradient.positive}", "is a curve, which needs figure.x: hardness"),
        ("{y: table.hardest_distances}", "is a table, which needs kind: matrices"),
        ("{kind: line, x: epoch, y: gradient.positive}", "needs a metric of validation or train"),
        ("{kind: line, x: hardness, y: validation.map_at_r}", "needs a metric of gradient as"),
        ("{kind: matrices}", "must be table.<name> for kind: matrices. Got 'test.recall_at_1'"),
        ("{kind: matrices, y: table.hardest_distance}", "Did you mean 'hardest_distances'?"),
        ("{kind: matrices, y: table.hardest_distances, x: epoch}", "figure.x must be left out for"),
        (
            "{kind: matrices, y: table.hardest_distances, group: loss.name}",
            "figure.group must be left out",
        ),
        (
            "{y: cost.seconds}",
            "cost.trained_parameters. Got 'cost.seconds'. Did you mean 'step_sec",
        ),
    ],
)
def test_measured_metrics_need_their_kind_of_figure(tmp_path, figure, problem):
    (found,) = problems_of(tmp_path, f"{MEASURED}figure: {figure}")
    assert problem in found


def test_every_figure_is_checked_and_named(tmp_path):
    text = f"{FIGURE_GRID}figure: {{y: test.nm}}\nfigures: [{{}}, {{y: test.nm, group: loss.nam}}]"
    starts = ["figure.y", "figures.1.y", "figures.1.group"]
    found = problems_of(tmp_path, text)
    assert [problem.split(" ")[0] for problem in found] == starts


@pytest.mark.parametrize(
    ("figure", "problem"),
    [
        ("{y: test.recall_at_3}", "Got 'test.recall_at_3', which arm 'triplet-8' does not compute"),
        ("{y: test.recal_at_1}", "Did you mean 'recall_at_1'?"),
        ("{y: validation.nmi}", "which arm 'triplet-8' does not compute on validation"),
        ("{y: test.ndcg_at_10}", "does not compute on test"),
        ("{y: test.binary_recall_at_1}", "does not compute on test"),
        ("{y: recall_at_1}", "must be one of test.<name>, validation.<name>, train.<name>, cost"),
        ("{y: []}", "figure.y must be a list with at least one"),
        ("{y: validation.map_at_r}", "must begin with a metric of test or cost, since it dec"),
        ("{y: [train.loss, test.nmi]}", "must begin with a metric of test or cost"),
        ("{y: train.los}", "Got 'train.los'. Did you mean 'loss'?"),
        ("{y: test.recall_at_*}", "has a star, which needs figure.x: '*'"),
        ("{kind: line, x: '*'}", "a star in y goes with x: '*'"),
        ("{kind: line, x: '*', y: test.ndcg_at_*}", "does not compute on test"),
        ("{kind: bar, x: epoch, y: train.loss}", "figure.x=epoch is for kind: line or lines. Got"),
        (
            "{kind: line, x: model.width}",
            "figure.x must be a key that the arms vary. Got 'mod",
        ),
        ("{kind: line, x: model.embedding_dm}", "Did you mean 'model.embedding_dim'?"),
        ("{kind: line}", "figure.x=arm is for kind: bar. Got kind: line"),
        ("{kind: line, x: epoch}", "The test classes are evaluated once, at the end."),
        ("{kind: lines, x: model.embedding_dim}", "figure.group is needed by kind: lines"),
        ("{kind: heatmap, x: loss.name}", "figure.group is needed by kind: heatmap"),
        ("{group: model.width}", "figure.group must be a key that the arms vary"),
        ("{x: loss.name, group: loss.name}", "figure.group must differ from figure.x"),
    ],
)
def test_figures_that_cannot_be_drawn_are_refused(tmp_path, figure, problem):
    (found,) = problems_of(tmp_path, f"{FIGURE_GRID}figure: {figure}")
    assert problem in found


def test_a_key_that_all_arms_set_alike_is_not_varied(tmp_path):
    text = """
question: q
arms: {a: {model.width: 8, loss.alpha: 1}, b: {model.width: 8, loss.alpha: 2}}
figure: {kind: line, x: model.width}
"""
    (found,) = problems_of(tmp_path, text)
    assert found.endswith("The arms vary loss.alpha.")


LOSSES = "question: q\ngrid: {loss.name: [triplet, contrastive], model.embedding_dim: [8, 16]}\n"
CLAIM_MEASURES = "measures: [gradients, step_cost]\nfixed: {evaluation.class_distances: 4}\n"


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
def test_claims_that_can_be_decided_are_accepted(tmp_path, claim):
    read_study(tmp_path, with_claim(GRID + CLAIM_MEASURES, claim))


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
def test_claims_that_cannot_be_decided_are_refused(tmp_path, claim, problem):
    (found,) = problems_of(tmp_path, with_claim(GRID, claim))
    assert problem in found


def test_only_the_arms_of_a_side_have_to_give_its_metric(tmp_path):
    arms = "arms: {a: {evaluation.binary: true}, b: {}}\n"
    text = with_claim("question: q\n" + arms, "left: {arms: [%s], metric: test.binary_map_at_r}")
    read_study(tmp_path, text % "a")
    assert "which arm 'b' does not compute" in problems_of(tmp_path, text % "b")[0]


def test_problems_of_claims_are_reported_with_those_of_figures(tmp_path):
    text = f"{LOSSES}figure: {{y: test.x}}\nclaims:\n" + (
        "  - {text: a, left: {arms: [x]}}\n  - {text: b, trend: {key: loss.name}}\n"
    )
    found = [problem.split(" ")[0] for problem in problems_of(tmp_path, text)]
    assert found == ["figure.y", "claims.0.left.arms", "claims.1.trend.key"]


def test_a_claim_may_name_an_arm_that_a_profile_omits(tmp_path):
    claims = (
        "claims:\n  - {text: a, left: {arms: [batch_size-90]}}\n"
        "  - {text: b, trend: {key: sampler.batch_size}}\n"
    )
    text = f"{GRID}{claims}profiles: {{smoke: {{arms: [batch_size-30]}}}}"
    assert len(read_study(tmp_path, text, profile="smoke").arms) == 1
