"""Whether trainings had ended before their end."""

import pytest

from dml_core.analysis.convergence import find_late_gains, late_gain
from dml_core.analysis.observations import Observations
from tests.references.observed_studies import make_training
from tests.references.written_studies import read_study

STUDY = """
question: q
arms: {a: {}, b: {loss.alpha: 3}, c: {loss.alpha: 4}}
fixed: {training.epochs: 6}
"""


@pytest.mark.parametrize(
    ("scores", "gain"),
    [
        # The best of the first four epochs is 0.6.
        ([0.2, 0.4, 0.5, 0.6, 0.65, 0.7], 0.1),
        ([0.2, 0.4, 0.5, 0.6, 0.6, 0.59], 0.0),
        ([0.2, 0.7, 0.5, 0.6, 0.65, 0.66], 0.0),
    ],
)
def test_the_gain_is_that_of_the_best_after_two_thirds(scores, gain):
    curve = list(enumerate(scores, start=1))
    assert late_gain(curve, epochs=6) == pytest.approx(gain)


def test_validations_at_few_epochs_count_by_their_epoch():
    assert late_gain([(2.0, 0.5), (4.0, 0.6), (6.0, 0.7)], epochs=6) == pytest.approx(0.1)
    # Nothing was validated before the last third.
    assert late_gain([(5.0, 0.5), (6.0, 0.7)], epochs=6) == 0.0


def make_epochs(*scores):
    return make_training(
        *(
            {"epoch": epoch, "train_seconds": 1.0, "validation": {"recall_at_1": score}}
            for epoch, score in enumerate(scores, start=1)
        )
    )


def test_an_arms_gain_is_the_mean_over_its_seeds(tmp_path):
    study = read_study(tmp_path, STUDY)
    trainings = {
        "a": {0: make_epochs(0.1, 0.2, 0.3, 0.4, 0.5, 0.6), 1: make_epochs(*[0.5] * 6)},
        "b": {0: make_epochs(0.4, 0.5)},
    }
    gains = find_late_gains(study, Observations(trainings=trainings))
    # Arm b has too few epochs to tell, and arm c none.
    assert gains == {"a": pytest.approx(0.1)}
