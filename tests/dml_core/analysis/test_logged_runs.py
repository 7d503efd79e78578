import pytest

from dml_core.analysis.logged_runs import LoggedRun, choose_unit, sort_runs


def run(group, seed, value, *, started=0, finished=True):
    name = f"{group}-{seed}-{started}"
    return LoggedRun(name, group, seed, value, started=started, is_finished=finished)


def test_runs_are_sorted_by_arm_and_seed():
    found = sort_runs([run("b", "1", 0.2), run("a", "0", 0.5), run("b", "0", 0.1)])
    assert found.scores == {"a": {0: 0.5}, "b": {0: 0.1, 1: 0.2}}
    assert found.run_ids["b"] == {0: "b-0-0", 1: "b-1-0"}
    assert found.left_out == {}


def test_the_newest_run_of_a_seed_counts_whatever_the_order():
    older, newer = run("a", "0", 0.1, started=1), run("a", "0", 0.9, started=2)
    for runs in ([older, newer], [newer, older]):
        found = sort_runs(runs)
        assert found.scores == {"a": {0: 0.9}}
        assert found.left_out == {"replaced by a newer run of the same seed": 1}


def test_runs_that_lack_something_are_counted_by_reason():
    found = sort_runs(
        [
            run("a", "0", 0.5),
            run(None, "0", 0.5),
            run("a", None, 0.5),
            run("a", "1", None),
            run("a", "2", float("nan")),
            run("a", "3", 0.5, finished=False),
        ]
    )
    assert found.scores == {"a": {0: 0.5}}
    assert found.left_out == {
        "without the group": 1,
        "without the seed": 1,
        "without the metric": 1,
        "with a metric that is no finite number": 1,
        "not finished": 1,
    }


def test_arms_that_are_numbers_are_in_their_order():
    found = sort_runs([run(name, "0", 1.0) for name in ("0.1", "1e-3", "10")])
    assert list(found.scores) == ["1e-3", "0.1", "10"]


@pytest.mark.parametrize(
    ("seeds", "numbers"),
    [(["7", "12"], [7, 12]), (["monday", "friday"], [1, 0]), (["1", "01"], [1, 0])],
)
def test_seeds_keep_their_numbers_and_texts_get_one(seeds, numbers):
    found = sort_runs([run("a", seed, float(place)) for place, seed in enumerate(seeds)])
    assert found.scores["a"] == {number: float(place) for place, number in enumerate(numbers)}
    assert [found.seeds[number] for number in numbers] == seeds


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.93412, "0.9341"), (2.34567, "2.346"), (123.456, "123.5"), (0.0000123456, "0.00001235")],
)
def test_a_metric_of_other_code_is_shown_with_four_digits(value, shown):
    assert choose_unit({"a": {0: value}}).show(value) == shown
