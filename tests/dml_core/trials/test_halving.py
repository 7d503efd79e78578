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
