"""The size of a study within a budget."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml_core.asking.recipes import PHOTOS
from dml_core.asking.sizing import (
    LAST_SHARE,
    SEEDS,
    SHARE,
    BudgetTooSmall,
    Costs,
    PackingWatch,
    check_preparation,
    size_study,
)

ARMS = list(PHOTOS.losses)
# 50 steps of 0.1 s: an epoch takes 5 s.
COSTS = Costs(
    step=0.1, steps_per_epoch=50, validation=0.0, winner=2.0, trial=0.0, fixed=40.0,
    num_concurrent=2,
)  # fmt: skip


def size(minutes, costs=COSTS):
    return size_study(PHOTOS, ARMS, costs, budget_seconds=60 * minutes)


def test_a_large_budget_is_capped_by_the_most_epochs():
    found = size(600)
    assert (found.arms, found.epochs, found.tries, found.seeds) == (tuple(ARMS), 16, 2, 2)


def test_epochs_fill_the_share_of_the_budget():
    found = size(20)
    # 4 arms x (2 + 1 + 2) trials at 5 s an epoch on two workers: 50 s an epoch. 8 winners take
    # 8 s, the rest 40 s: (600 - 48) / 50 = 11.04.
    assert found.epochs == 11
    assert found.seconds(COSTS) == pytest.approx(11 * 50 + 8 + 40)


def test_the_looks_reach_as_many_seeds_as_the_rest_of_the_budget_affords():
    # A seed of 4 arms takes 4 x (11 x 5 s + 2 s) / 2 = 114 s, and 1200 - 598 s are left.
    assert size(20).count_affordable(COSTS, budget_seconds=1200) == 2 + 5
    # Looks need a size to grow to, also where a rest of the budget is too small for it.
    assert size(20).count_affordable(COSTS, budget_seconds=600) == 2 + 2


def test_the_winners_are_evaluated_one_by_one_before_the_report():
    # 8 winners of 2 s and 10 s.
    costs = replace(COSTS, report=10.0)
    assert size(20).seconds_after_sweep(costs) == 8 * 2 + 10
    assert size(20).seconds(costs) == size(20).seconds(COSTS) + 10


def test_a_small_budget_gives_up_tries_then_length_then_arms():
    # With 8 epochs: (20 trials x 40 s + 16 s) / 2 + 40 s = 448 s, which is half of 14.9 minutes.
    assert (size(15).tries, size(15).epochs) == (2, 8)
    assert (size(8).tries, size(8).epochs, len(size(8).arms)) == (1, 9, 4)
    assert size(5).epochs < 8
    assert len(size(3).arms) < 4
    assert {size(minutes).seeds for minutes in (3, 5, 8, 15, 600)} == {SEEDS}


def test_a_frozen_network_that_would_take_the_budget_is_refused_with_the_minutes():
    check_preparation(300, 4000, budget_seconds=600)
    message = r"at least 11: passing 4,000 images .* takes about 5\.0 minutes .* Got 9\.8"
    with pytest.raises(BudgetTooSmall, match=message):
        check_preparation(301, 4000, budget_seconds=590)


def test_a_few_images_are_trained_for_many_short_epochs():
    # One step an epoch: 200 steps are enough, 600 the most.
    costs = Costs(0.1, 1, 0.5, 0.1, 1.0, 30.0, 2)
    assert 200 <= size(30, costs).epochs <= 600
    assert PHOTOS.count_epochs(1).least == 60
    # Four validations more cost little: they do not grow with the epochs.
    assert costs.of_trial(300) == pytest.approx(1 + 300 * 0.1 + 6 * 0.5)


def test_a_budget_that_is_too_small_names_the_minutes_that_are_enough():
    with pytest.raises(
        BudgetTooSmall, match=r"--minutes must be at least 2: .* Found 1\.0"
    ) as caught:
        size(1)
    # 4 trials of 15 s on two workers, 4 winners in 4 s, 40 s: 74 s, which is 85 % of 1.45 minutes.
    assert "two arms with two seeds and 3 epochs take about 1.2 minutes" in str(caught.value)
    assert size(1.5).num_trials == 4


@given(
    step=st.floats(0.001, 5),
    steps_per_epoch=st.integers(1, 1000),
    validation=st.floats(0, 20),
    winner=st.floats(0, 50),
    trial=st.floats(0, 10),
    fixed=st.floats(0, 100),
    workers=st.integers(1, 64),
    minutes=st.floats(0.1, 600),
)
def test_no_study_takes_more_than_its_share(
    step, steps_per_epoch, validation, winner, trial, fixed, workers, minutes
):
    costs = Costs(step, steps_per_epoch, validation, winner, trial, fixed, workers)
    try:
        found = size(minutes, costs)
    except BudgetTooSmall:
        return
    share = LAST_SHARE if found.num_trials == 4 else SHARE
    assert found.seconds(costs) <= share * 60 * minutes * (1 + 1e-9)
    length = PHOTOS.count_epochs(steps_per_epoch)
    assert length.least <= found.epochs <= length.most
    assert found.seeds >= 2
    assert len(found.arms) >= 2


def test_packing_that_would_take_the_budget_ends_soon_with_the_minutes_that_are_enough():
    now = [0.0]
    watch = PackingWatch(600, clock=lambda: now[0])
    # A check of older data, which is repeated from the start: only the second pass counts.
    now[0] = 19
    watch.count(1000, 1000)
    watch.count(1, 1000)
    now[0] = 38
    watch.count(30, 1000)
    now[0] = 39
    # 20 s for 29 images after the first: 690 s for all, which is more than half of 600 s.
    message = r"at least 23: packing 1,000 images takes about 11\.5 minutes"
    with pytest.raises(BudgetTooSmall, match=message):
        watch.count(30, 1000)


def test_the_time_before_the_first_image_says_nothing_about_packing():
    now = [0.0]
    watch = PackingWatch(600, clock=lambda: now[0])
    # 100,000 classes are listed for a while.
    now[0] = 60
    watch.count(1, 200_000)
    now[0] = 85
    watch.count(50_001, 200_000)


def test_packing_that_fits_is_not_stopped():
    now = [0.0]
    watch = PackingWatch(600, clock=lambda: now[0])
    now[0] = 25
    watch.count(100, 1000)
