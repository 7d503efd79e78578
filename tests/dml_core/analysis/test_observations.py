import json
import math

import pytest

from dml_core.analysis.observations import Observations, load_observations
from dml_core.config import resolve_trial_config
from dml_core.config.loading import to_flat_dict
from dml_core.measures.results import StudyScores, write_scores
from tests.references.observed_studies import make_training, observe

FIRST = {
    "train_loss": 3.0,
    "active_fraction": 0.9,
    "diagnostics": {"synthetic_fraction": 0.2},
    "validation": {"map_at_r": 0.3, "recall_at_1": 0.5, "recall_at_2": 0.6},
    "tables": {"hardest_distances": [[0.0, 0.2], [0.4, 0.0]]},
}
SECOND = {"train_loss": 2.0, "active_fraction": None, "diagnostics": {}}
THIRD = {"train_loss": 1.0, "active_fraction": 0.7, "validation": {"map_at_r": 0.1}}

LEARNED = Observations(trainings={"a": {4: make_training(FIRST, SECOND, THIRD, selected=0)}})


def test_test_scores_are_given_by_arm_and_seed_and_what_is_not_finite_is_absent():
    observations = observe({"a": [0.5, None, math.nan], "b": [None]})
    assert observations.scalars("test.recall_at_1") == {"a": {0: 0.5}}
    assert observations.scalars("test.nmi") == {}


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        # The judged epoch is the first, though its validation is not the last.
        ("validation.map_at_r", 0.3),
        ("first.validation.map_at_r", 0.3),
        ("last.validation.map_at_r", 0.1),
        ("mean.validation.map_at_r", 0.2),
        ("train.loss", 1.0),
        ("first.train.loss", 3.0),
        ("mean.train.loss", 2.0),
        ("train.active_fraction", 0.7),
        ("mean.train.active_fraction", 0.8),
        ("train.synthetic_fraction", 0.2),
        # (0.2 + 0.4) / 2, the diagonal left out
        ("last.table.hardest_distances", 0.3),
        ("last.validation.recall_at_*", 0.6),
    ],
)
def test_a_training_gives_one_number_of_each_metric(metric, value):
    assert LEARNED.scalars(metric) == {"a": {4: pytest.approx(value)}}


def test_curves_run_over_epochs_or_the_seconds_up_to_their_ends():
    assert LEARNED.curves("validation.map_at_r", x="epoch") == {"a": {4: [(1, 0.3), (3, 0.1)]}}
    assert LEARNED.curves("validation.map_at_r", x="seconds") == {"a": {4: [(2, 0.3), (6, 0.1)]}}
    assert LEARNED.curves("train.loss", x="epoch") == {"a": {4: [(1, 3), (2, 2), (3, 1)]}}
    assert LEARNED.curves("train.nothing", x="epoch") == {}


def test_a_star_runs_over_its_numbers_by_size():
    names = {"ndcg_at_100": 0.7, "ndcg_at_20": 0.8, "ndcg_at_5": 0.9, "nmi": 0.1}
    observations = Observations(scores={"a": {0: names}, "b": {0: {"nmi": 0.2}}})
    wanted = {"a": {0: [(5, 0.9), (20, 0.8), (100, 0.7)]}}
    assert observations.curves("test.ndcg_at_*", x="*") == wanted
    assert observations.scalars("mean.test.ndcg_at_*") == {"a": {0: pytest.approx(0.8)}}
    wanted = {"a": {4: [(1, 0.5), (2, 0.6)]}}
    assert LEARNED.curves("validation.recall_at_*", x="*") == wanted


def test_tables_are_given_by_epoch_with_and_without_their_kind():
    wanted = {"a": {4: {1: [[0.0, 0.2], [0.4, 0.0]]}}}
    assert LEARNED.tables("hardest_distances") == wanted
    assert LEARNED.tables("table.hardest_distances") == wanted
    assert LEARNED.tables("others") == {}


def write_winner(folder, *epochs, **knobs):
    folder.mkdir(parents=True)
    lines = [
        json.dumps({"epoch": number, "train_seconds": 1.5, "validation": validation})
        for number, validation in enumerate(epochs, start=1)
    ]
    (folder / "epochs.jsonl").write_text("\n".join(lines))
    config = resolve_trial_config(knobs)
    (folder / "config.json").write_text(json.dumps(to_flat_dict(config)))


@pytest.fixture
def results(tmp_path):
    winners = tmp_path / "sweep" / "winners"
    scores = [{"map_at_r": 0.2}, {"map_at_r": 0.6}, {"map_at_r": 0.4}]
    write_winner(winners / "a-seed1-seed7", *scores)
    write_winner(winners / "b-seed0", *scores, **{"training.select": "last"})
    tested = {"a-seed1": {7: {"nmi": 0.5}}}
    write_scores(StudyScores("s", "", "", "", tested), tmp_path / "evaluate")
    return tmp_path


def test_results_of_a_sweep_and_its_evaluation_are_read(results):
    observations = load_observations(results / "sweep", results / "evaluate")
    assert observations.scalars("test.nmi") == {"a-seed1": {7: 0.5}}
    # The best epoch of one, the last of the other, as each selects.
    wanted = {"a-seed1": {7: 0.6}, "b": {0: 0.4}}
    assert observations.scalars("validation.map_at_r") == wanted
    assert observations.scalars("cost.step_seconds") == {}


def test_measures_are_read(results):
    (results / "evaluate" / "measures.json").write_text(
        json.dumps(
            {
                "scalars": {"cost.step_seconds": {"b": {"0": 0.5, "1": math.nan}}},
                "curves": {"gradient.positive": {"b": {"0": [[0.5, 2.0], [0.1, 1.0]]}}},
            }
        )
    )
    observations = load_observations(results / "sweep", results / "evaluate")
    assert observations.scalars("cost.step_seconds") == {"b": {0: 0.5}}
    wanted = {"b": {0: [(0.1, 1.0), (0.5, 2.0)]}}
    assert observations.curves("gradient.positive", x="hardness") == wanted
    assert observations.scalars("last.gradient.positive") == {"b": {0: 2.0}}
