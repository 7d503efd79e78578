import pytest

from tests.references.written_studies import problems_of, read_study

GRID = "question: q\ngrid: {loss.name: [triplet, contrastive], model.embedding_dim: [8, 16]}\n"


@pytest.mark.parametrize(
    "figure",
    [
        "{}",
        "{kind: bar, group: loss.name}",
        "{kind: line, x: model.embedding_dim}",
        "{kind: lines, x: model.embedding_dim, group: loss.name, log_x: true}",
        "{kind: heatmap, x: model.embedding_dim, group: loss.name, y: test.nmi}",
        "{kind: lines, x: epoch, y: validation.map_at_r}",
    ],
)
def test_figures_that_can_be_drawn_are_accepted(tmp_path, figure):
    read_study(tmp_path, f"{GRID}figure: {figure}")


@pytest.mark.parametrize(
    ("figure", "problem"),
    [
        ("{y: test.recall_at_3}", "Got 'test.recall_at_3', which arm 'triplet-8' does not compute"),
        ("{y: test.recal_at_1}", "Did you mean 'recall_at_1'?"),
        ("{y: validation.nmi}", "which arm 'triplet-8' does not compute on validation"),
        ("{y: test.ndcg_at_10}", "does not compute on test"),
        ("{y: test.binary_recall_at_1}", "does not compute on test"),
        ("{y: recall_at_1}", "must be test.<metric> or validation.<metric>. Got 'recall_at_1'"),
        (
            "{kind: line, x: model.width}",
            "figure.x must be a key that the arms vary. Got 'mod",
        ),
        ("{kind: line, x: model.embedding_dm}", "Did you mean 'model.embedding_dim'?"),
        ("{kind: line}", "figure.x=arm is for kind: bar. Got kind: line"),
        ("{kind: line, x: epoch}", "figure.x=epoch needs a validation metric"),
        ("{kind: lines, x: model.embedding_dim}", "figure.group is needed by kind: lines"),
        ("{kind: heatmap, x: loss.name}", "figure.group is needed by kind: heatmap"),
        ("{group: model.width}", "figure.group must be a key that the arms vary"),
        ("{x: loss.name, group: loss.name}", "figure.group must differ from figure.x"),
    ],
)
def test_figures_that_cannot_be_drawn_are_refused(tmp_path, figure, problem):
    (found,) = problems_of(tmp_path, f"{GRID}figure: {figure}")
    assert problem in found


def test_a_key_that_all_arms_set_alike_is_not_varied(tmp_path):
    text = """
question: q
arms: {a: {model.width: 8, loss.alpha: 1}, b: {model.width: 8, loss.alpha: 2}}
figure: {kind: line, x: model.width}
"""
    (found,) = problems_of(tmp_path, text)
    assert found.endswith("The arms vary loss.alpha.")
