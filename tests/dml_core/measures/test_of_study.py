from typing import get_args

from dml_core.measures.of_study import MEASURES
from dml_core.measures.results import Measured, list_winners
from dml_core.studies.definition import Measure


def test_every_measure_that_a_study_may_list_exists():
    assert set(MEASURES) == set(get_args(Measure))


def test_a_measure_taken_winner_by_winner_equals_that_of_all(winners):
    found, one_by_one = list_winners(winners), Measured()
    for winner in found:
        one_by_one.update(MEASURES["gradients"].take([winner]))
    assert MEASURES["gradients"].takes_one
    assert one_by_one == MEASURES["gradients"].take(found)
