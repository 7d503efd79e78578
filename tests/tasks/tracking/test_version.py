"""What MLflow shows of a registered model: description, tags, scores and datasets."""

import pytest

from dml_core.training.checkpoint import load_checkpoint
from tasks.model_facts import DataFacts, ModelFacts, Score
from tasks.tracking.model import register_winner
from tasks.tracking.version import describe_version
from tests.references.made_up_results import HOSTILE

FACTS = ModelFacts(
    study="dimension",
    question=f"Does a larger one help {HOSTILE}?",
    arm="dim_8",
    seed=0,
    metric="recall_at_1",
    scores=(
        Score("recall_at_1", 0.5, 0.6, (0.4, 0.8), 2),
        Score("mean_label_distance_at_1", 0.25, 0.25, None, 1),
    ),
    data=DataFacts("glyphs", "c0ffee" * 10, "5b117", {"test images": 64}),
    settings={"model.embedding_dim": 8},
)


@pytest.fixture
def described(tracking, mlflow_config, trained_winners):
    """A registered winner that was described twice, its run, and a client."""
    client = tracking.client()
    run = client.create_run(client.create_experiment("dimension", tracking.artifact_root))
    client.log_metric(run.info.run_id, "test.recall_at_1", 0.5, timestamp=1000)
    checkpoint = trained_winners[1] / "dim_8-seed0" / "checkpoint.pt"
    epoch = load_checkpoint(checkpoint).selected_epoch
    client.log_metric(run.info.run_id, "validation.map_at_r", 0.3, step=epoch)
    client.log_metric(run.info.run_id, "validation.map_at_r", 0.2, step=epoch + 1)
    winner = register_winner(
        tracking,
        mlflow_config,
        study="dimension",
        run_id=run.info.run_id,
        checkpoint=checkpoint,
    )
    for _ in range(2):
        describe_version(tracking, winner, FACTS, run_id=run.info.run_id)
    return winner, run.info, client


def test_a_version_says_what_it_is_how_good_it_is_and_how_to_load_it(described):
    winner, _, client = described
    version = client.get_model_version(winner.name, winner.version)
    for part in (
        "| recall_at_1 | 50.0 % | 60.0 % (40.0 to 80.0, 2 seeds) |",
        "| mean_label_distance_at_1 | 0.2500 | 0.2500 (one seed, no interval) |",
        'load_model("models:/dml-dimension/1")',
        "| model.embedding_dim | 8 |",
        "c0ffee",
    ):
        assert part in version.description, part
    assert HOSTILE not in version.description
    assert "&lt;script>" in version.description
    assert version.tags["dml.arm"] == "dim_8"
    assert version.tags["dml.test.recall_at_1"] == "0.5"
    assert "the study dimension" in client.get_registered_model(winner.name).description


def test_the_scores_are_the_models_own_metrics_with_their_dataset(described):
    _, run, client = described
    (model,) = client.search_logged_models(
        [run.experiment_id],
        filter_string="metrics.`test.recall_at_1` > 0.4",
        datasets=[{"dataset_name": "glyphs test"}],
    )
    found = {metric.key: metric for metric in model.metrics}
    # The validation scores are those of the epoch that was selected.
    assert {key: metric.value for key, metric in found.items()} == {
        "validation.map_at_r": 0.3,
        "test.recall_at_1": 0.5,
        "test.mean_label_distance_at_1": 0.25,
    }
    assert found["test.recall_at_1"].dataset_name == "glyphs test"
    assert found["test.recall_at_1"].dataset_digest == ("c0ffee" * 10)[:36]
    # The run had this metric before, and has it once.
    assert len(client.get_metric_history(run.run_id, "test.recall_at_1")) == 1


def test_the_run_has_both_datasets_with_their_use(described):
    _, run, client = described
    inputs = client.get_run(run.run_id).inputs.dataset_inputs
    used = {each.dataset.name: each.tags[0].value for each in inputs}
    assert used == {"glyphs development": "training", "glyphs test": "testing"}
    assert '"test images": 64' in inputs[0].dataset.profile
