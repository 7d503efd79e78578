from itertools import permutations

import pytest

from dml_core.trials.halving import SuccessiveHalving


def judge(halving, trial, score, *, epoch=1, group="arm"):
    return halving.judge(group, trial, epoch=epoch, num_epochs=9, score=score)


def test_rungs_grow_by_the_factor_and_leave_out_the_last_epoch():
    halving = SuccessiveHalving(grace_epochs=1, reduction_factor=3)
    assert halving.milestones(9) == [1, 3]
    assert halving.milestones(10) == [1, 3, 9]
    assert SuccessiveHalving(grace_epochs=2, reduction_factor=2).milestones(9) == [2, 4, 8]


def test_the_first_goes_on_and_later_ones_have_to_be_among_the_best_third():
    halving = SuccessiveHalving(grace_epochs=1, reduction_factor=3)
    # Of 1 to 5 at the rung one place is free, of 6 two.
    verdicts = [judge(halving, str(i), s) for i, s in enumerate([0.5, 0.4, 0.6, 0.6, 0.1, 0.55])]
    assert verdicts == [True, False, True, True, False, False]


def test_the_sixth_at_a_rung_of_six_opens_a_second_place():
    halving = SuccessiveHalving(grace_epochs=1, reduction_factor=3)
    for trial, score in enumerate([0.9, 0.1, 0.1, 0.1, 0.1]):
        judge(halving, str(trial), score)
    # 6 // 3 = 2 places: 0.9 and this one.
    assert judge(halving, "sixth", 0.2)


def test_arms_are_never_compared():
    halving = SuccessiveHalving(grace_epochs=1, reduction_factor=2)
    assert judge(halving, "good", 0.9, group="strong arm")
    assert judge(halving, "bad", 0.1, group="weak arm")


def test_asked_again_it_answers_the_same():
    halving = SuccessiveHalving(grace_epochs=1, reduction_factor=2)
    assert judge(halving, "a", 0.5)
    assert judge(halving, "b", 0.9)
    assert judge(halving, "a", 0.5)
    assert not judge(halving, "c", 0.1)
    assert not judge(halving, "c", 0.1, epoch=2)


def test_a_rung_without_validation_is_judged_at_the_next_score():
    halving = SuccessiveHalving(grace_epochs=1, reduction_factor=2)
    assert judge(halving, "a", 0.5)
    assert judge(halving, "b", None)
    assert not judge(halving, "b", 0.1, epoch=2)


def test_noted_scores_of_an_earlier_run_count_as_if_it_had_not_stopped():
    unbroken, resumed = (SuccessiveHalving(grace_epochs=1, reduction_factor=2) for _ in range(2))
    for trial, score in (("a", 0.5), ("b", 0.6)):
        judge(unbroken, trial, score)
        resumed.note("arm", trial, epoch=1, num_epochs=9, score=score)
    for trial, score in (("c", 0.55), ("d", 0.4)):
        assert judge(unbroken, trial, score) == judge(resumed, trial, score)


def test_a_grace_of_nothing_is_refused():
    with pytest.raises(ValueError, match="Got 0 and 3"):
        SuccessiveHalving(grace_epochs=0, reduction_factor=3)


def test_the_expected_epochs_are_those_of_the_trials_that_are_likely_to_continue():
    halving = SuccessiveHalving(grace_epochs=7, reduction_factor=3)
    # Of three at the rung of epoch 7, 1 + 1/2 + 1/3 = 11/6 continue for 14 more epochs.
    assert halving.expected_epochs(3, num_epochs=21) == pytest.approx(21 + 11 / 6 * 14)
    # The second rung is at 21: of 11/6 trials, 1 + 5/6 * 1/2 = 17/12 continue for 9 more.
    expected = 21 + 11 / 6 * 14 + 17 / 12 * 9
    assert halving.expected_epochs(3, num_epochs=30) == pytest.approx(expected)


def test_rungs_that_share_a_validation_prune_once_and_one_at_the_last_epoch_never():
    halving = SuccessiveHalving(grace_epochs=1, reduction_factor=2)
    # The rungs of epochs 1, 2 and 4 are judged at 5, that of 8 at 10: of 2 trials, 3/2 and 5/4.
    expected = 2 * 5 + 3 / 2 * 5 + 5 / 4 * 2
    assert halving.expected_epochs(2, num_epochs=12, validate_every=5) == pytest.approx(expected)
    assert halving.expected_epochs(2, num_epochs=4, validate_every=5) == 8


def test_the_expected_epochs_are_the_mean_over_orders_of_the_trials():
    epochs = 9
    ran = []
    for order in permutations(range(5)):
        halving = SuccessiveHalving(grace_epochs=3, reduction_factor=2)
        continuing = [judge(halving, str(s), s, epoch=3) for s in order]
        ran.append(3 * len(order) + sum(continuing) * (epochs - 3))
    halving = SuccessiveHalving(grace_epochs=3, reduction_factor=2)
    # The mean is exact up to the second rung, at epoch 6.
    assert halving.expected_epochs(5, num_epochs=6) == pytest.approx(
        3 * 5 + (sum(ran) / len(ran) - 3 * 5) / 2
    )


def test_whatever_is_pruned_each_trial_reaches_the_first_rung_and_one_the_end():
    for trials in range(1, 40):
        halving = SuccessiveHalving(grace_epochs=2, reduction_factor=4)
        expected = halving.expected_epochs(trials, num_epochs=33)
        assert 2 * trials + 31 <= expected <= 33 * trials
