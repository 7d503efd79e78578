import pytest

from tests.drills.faults import FAULTS, find_fault
from tests.drills.plan import list_drills, make_drill
from tests.drills.project import NUM_EPOCHS, NUM_TRIALS

NAMES = [fault.name for fault in FAULTS]


def test_the_same_seed_gives_the_same_plan():
    assert list_drills(3, count=40, faults=FAULTS) == list_drills(3, count=40, faults=FAULTS)
    assert list_drills(3, count=40, faults=FAULTS) != list_drills(4, count=40, faults=FAULTS)


def test_a_number_always_means_the_same_drill():
    for drill in list_drills(7, count=30, faults=FAULTS):
        assert make_drill(7, drill.number, FAULTS) == drill
        again, former = drill.choices(), drill.choices()
        assert [again.random() for _ in range(3)] == [former.random() for _ in range(3)]


def test_every_round_has_each_fault_once_in_another_order():
    drills = list_drills(0, count=3 * len(FAULTS), faults=FAULTS)
    rows = [
        [d.fault for d in drills[i : i + len(FAULTS)]] for i in range(0, len(drills), len(FAULTS))
    ]
    assert all(sorted(row) == sorted(NAMES) for row in rows)
    assert rows[0] != rows[1]


def test_wanted_faults_keep_their_numbers_and_moments():
    chosen = list_drills(0, count=5, faults=FAULTS, wanted=["ctrl-c", "disk-full"])
    assert {drill.fault for drill in chosen} == {"ctrl-c", "disk-full"}
    assert chosen == [make_drill(0, drill.number, FAULTS) for drill in chosen]


def test_moments_are_spread_over_a_sweep_and_leave_work():
    drills = list_drills(0, count=300, faults=FAULTS)
    for drill in drills:
        assert 0 <= drill.moment.ended <= find_fault(drill.fault).latest < NUM_TRIALS
        assert 1 <= drill.moment.epoch < NUM_EPOCHS
    assert {drill.moment.ended for drill in drills} >= {0, 1, 2, 3, 4}
    assert len({drill.moment.epoch for drill in drills}) > NUM_EPOCHS // 2


def test_an_unknown_fault_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match=r"Got 'ctrlc'.*ctrl-c"):
        list_drills(0, count=1, faults=FAULTS, wanted=["ctrlc"])


def test_every_fault_has_a_unique_name_and_a_summary():
    assert len(set(NAMES)) == len(FAULTS) == 20
    for fault in FAULTS:
        assert fault.summary
        assert find_fault(fault.name) is fault
