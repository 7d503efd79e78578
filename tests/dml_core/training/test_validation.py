import numpy as np
import pytest

from dml_core.data.prepared import open_development
from dml_core.evaluation.clustering import smallest_class_distances
from dml_core.measures.model_scores import embed_with_checkpoint
from dml_core.training.checkpoint import load_newest_checkpoint
from dml_core.training.in_folder import train_in_folder
from dml_core.trials.journal import read_epochs
from tests.references.tiny_trials import tiny_config

EXPANDABLE = ["triplet", "n_pair", "lifted_structure", "multi_similarity"]


def train(config, folder):
    train_in_folder(config, open_development(config.data), folder, on_message=lambda _: None)
    return read_epochs(folder)


def test_tables_and_synthetic_recalls_are_recorded_for_each_validated_epoch(tiny_root, tmp_path):
    config = tiny_config(
        tiny_root,
        evaluation__class_distances=2,
        evaluation__synthetic_points=2,
        training__validate_every=2,
        training__select="last",
    )
    epochs = train(config, tmp_path)
    assert [bool(epoch["tables"]) for epoch in epochs] == [False, True, True]
    assert 0 <= epochs[-1]["validation"]["synthetic_recall_at_1"] <= 1
    assert not any("hardest" in name for name in epochs[-1]["validation"])
    checkpoint, _ = load_newest_checkpoint(tmp_path / "checkpoints")
    images = open_development(config.data).validation
    embeddings = embed_with_checkpoint(checkpoint, images)
    wanted = smallest_class_distances(embeddings, images.labels, max_classes=2, metric="cosine")
    table = np.array(epochs[-1]["tables"]["hardest_distances"])
    assert table.shape == (2, 2)
    assert table == pytest.approx(wanted, abs=1e-3)
    assert np.array_equal(table, table.round(4))


def test_neither_is_there_where_nobody_asked(tiny_root, tmp_path):
    epoch = train(tiny_config(tiny_root, training__epochs=1), tmp_path)[0]
    assert epoch["tables"] == {}
    assert not any("synthetic" in name for name in epoch["validation"])


@pytest.mark.parametrize("loss", EXPANDABLE)
def test_the_share_of_synthetics_is_recorded_for_every_expandable_loss(tiny_root, tmp_path, loss):
    config = tiny_config(
        tiny_root,
        loss__name=loss,
        loss__expansion__points=2,
        training__epochs=2,
    )
    shares = [epoch["diagnostics"]["synthetic_fraction"] for epoch in train(config, tmp_path)]
    assert len(shares) == 2
    assert all(0 <= share <= 1 for share in shares)
    assert max(shares) > 0
