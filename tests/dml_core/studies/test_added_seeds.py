"""Looks at a study, and the seeds that they add."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml_core.config import ConfigError
from dml_core.studies.added_seeds import (
    AddedSeeds,
    check_most_seeds,
    read_added,
    render_added,
)
from dml_core.studies.definition import MAX_LOOKS
from dml_core.studies.loading import load_study
from tests.references.written_studies import TWO_ARMS, make_project

PATH = Path("studies/main.seeds.json")


def test_four_looks_grow_by_the_same_factor():
    # 5 x 4 ** (1/3) = 7.9, 5 x 4 ** (2/3) = 12.6.
    assert AddedSeeds().plan(5, 20).sizes == (5, 8, 13, 20)


def test_more_seeds_later_are_more_looks():
    planned = AddedSeeds(sizes=(5, 8, 13, 20)).plan(20, 40)
    assert planned.sizes == (5, 8, 13, 20, 25, 32, 40)
    assert planned.looks == 7
    # Of a plan that was not carried out to its end, only the looks that happened count.
    assert AddedSeeds(sizes=(5, 8, 13, 20)).plan(8, 40).sizes == (5, 8, 14, 23, 40)


def test_fewer_seeds_than_planned_leave_the_plan_as_it_is():
    planned = AddedSeeds(sizes=(5, 8, 13, 20))
    assert planned.plan(5, 10) is planned


@given(start=st.integers(2, 50), extra=st.integers(1, 500))
def test_every_plan_grows_from_the_start_to_the_most(start, extra):
    sizes = AddedSeeds().plan(start, start + extra).sizes
    assert (sizes[0], sizes[-1]) == (start, start + extra)
    assert list(sizes) == sorted(set(sizes))
    assert len(sizes) <= MAX_LOOKS


def test_a_study_with_all_its_looks_used_up_says_so():
    full = AddedSeeds(sizes=tuple(range(2, 2 + MAX_LOOKS)))
    with pytest.raises(ValueError, match="judged 10 times, and this one has been"):
        full.plan(1 + MAX_LOOKS, 50)


def test_the_next_look_gives_open_arms_the_same_seeds():
    planned = AddedSeeds(sizes=(3, 5, 8))
    counts = {"a": 3, "b": 3, "c": 3}
    first = planned.grow({"a", "c"}, listed=(7, 1, 4), counts=counts, most=20)
    assert first.seeds == {"a": (8, 9), "c": (8, 9)}
    # An arm that was decided before catches up with the others.
    second = first.grow({"a", "b"}, listed=(7, 1, 4), counts={"a": 5, "b": 3, "c": 5}, most=20)
    assert second.seeds["a"] == second.seeds["b"] == (8, 9, 10, 11, 12)
    assert second.seeds["c"] == (8, 9)


@pytest.mark.parametrize(("arms", "count", "most"), [(set(), 3, 20), ({"a"}, 8, 20), ({"a"}, 3, 4)])
def test_nothing_open_no_look_left_or_too_many_seeds_add_nothing(arms, count, most):
    planned = AddedSeeds(sizes=(3, 5, 8))
    assert planned.grow(arms, listed=(0, 1, 2), counts={"a": count}, most=most) is None


def test_a_file_is_read_back_as_it_was_written():
    added = AddedSeeds(sizes=(3, 5), seeds={"a": (8, 9)})
    assert read_added(PATH, render_added(added)) == added
    assert read_added(PATH, "") == AddedSeeds()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "must be JSON"),
        ('{"sizes": [5, 3]}', "sizes must grow from look to look. Got [5, 3]"),
        ('{"seeds": {"a": [-1]}}', "must be >= 0. Got -1"),
        ('{"seeds": {"../a": [1]}}', "Got '../a'"),
        ('{"seed": {}}', "Did you mean 'seeds'?"),
    ],
)
def test_a_damaged_file_is_named_with_what_to_do(text, words):
    with pytest.raises(ConfigError) as caught:
        read_added(PATH, text)
    assert words in str(caught.value)
    assert "git checkout -- studies/main.seeds.json" in str(caught.value)


def test_the_most_seeds_must_be_more_than_an_arm_has():
    check_most_seeds(6, 5)
    with pytest.raises(ValueError, match=r"above 5, .* Got 5"):
        check_most_seeds(5, 5)


def test_added_seeds_are_repeats_of_their_arms_alone(tmp_path):
    path = tmp_path / "asked.yaml"
    path.write_text(TWO_ARMS)
    added = AddedSeeds(sizes=(2, 3), seeds={"anchor": (8,), "gone": (8,)})
    project = make_project(tmp_path)
    study, plain = (load_study(path, project, added=each) for each in (added, AddedSeeds()))
    rate = {"optimizer.learning_rate": 0.001}
    ids = [spec.trial_id for spec in study.repeat_specs({"triplet": rate, "anchor": rate})]
    assert ids == ["triplet-seed4", "anchor-seed4", "triplet-seed7", "anchor-seed7", "anchor-seed8"]
    assert (study.num_repeats, plain.num_repeats) == (5, 4)
    assert (study.num_looks, plain.num_looks) == (2, 1)
    assert study.digest == plain.digest
