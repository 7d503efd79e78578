"""Faults in real sweeps, as in `make drill`: the result equals that of an undisturbed sweep."""

import pytest

from tests.drills.checks import read_runs, read_table
from tests.drills.faults import FAULTS, find_fault
from tests.drills.plan import Drill, Moment
from tests.drills.project import NUM_EPOCHS, NUM_TRIALS
from tests.drills.runner import DrillGround
from tests.references.empty_databases import find_databases

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    """The project with its undisturbed sweep, and the shared servers."""
    ground = DrillGround(tmp_path_factory.mktemp("drills"), databases=find_databases())
    with ground.open():
        ground.run_undisturbed()
        yield ground


def test_the_undisturbed_sweep_has_each_trial_and_epoch_once(ground):
    trials = [row["trial_id"] for row in read_table(ground.undisturbed)]
    assert len(trials) == NUM_TRIALS
    runs = read_runs(ground.undisturbed)
    # The first is the run of the sweep itself.
    assert [trial for trial, _, _ in runs] == ["", *sorted(trials)]
    assert {status for _, status, _ in runs} == {"FINISHED"}
    for _, _, metrics in runs[1:]:
        epochs = [step for name, step, _ in metrics if name == "validation.map_at_r"]
        assert sorted(epochs) == list(range(1, NUM_EPOCHS + 1))


@pytest.mark.parametrize(
    ("fault", "ended", "epoch"),
    [
        ("driver-killed", 2, 3),
        ("worker-killed", 1, 6),
        # A lost cluster: also tests/tasks/sweep/test_bucket_sweeps.py.
        pytest.param("cluster-lost", 2, 4, marks=pytest.mark.nightly),
        pytest.param("mlflow-down", 0, 2, marks=pytest.mark.nightly),
        pytest.param("ctrl-c", 1, 5, marks=pytest.mark.nightly),
        pytest.param("sigterm", 0, 4, marks=pytest.mark.nightly),
        pytest.param("checkpoint-bit-flipped", 1, 7, marks=pytest.mark.nightly),
        pytest.param("trial-hangs", 0, 3, marks=pytest.mark.nightly),
        pytest.param("mlflow-deleted", 3, 2, marks=pytest.mark.nightly),
        pytest.param("code-edited", 0, 2, marks=pytest.mark.nightly),
        pytest.param("cluster-killed", 1, 5, marks=pytest.mark.nightly),
        pytest.param("bucket-away", 1, 3, marks=pytest.mark.nightly),
    ],
)
def test_nothing_is_lost(ground, fault, ended, epoch):
    assert find_fault(fault).why_not() == ""
    # A failed drill leaves its folder, so each has a number of its own.
    number = FAULTS.index(find_fault(fault))
    drill = Drill(seed=0, number=number, fault=fault, moment=Moment(ended, epoch))
    outcome = ground.run(drill)
    assert outcome.problems == []
    assert outcome.result == "passed"
    assert not (ground.folder / f"drill-{number}").exists()


def test_a_sweep_that_exceeds_its_time_limit_says_so_in_one_line(ground, tmp_path):
    with ground.sweeping(tmp_path / "timed", params={"sweep.timeout_seconds": 0.5}) as sweep:
        sweep.start()
        assert sweep.wait_for_end() == 2, sweep.last_words()
        over = [
            line
            for line in sweep.printed.splitlines()
            if line.startswith("dml: sweep.timeout_seconds=0.5 is over")
        ]
        assert len(over) == 1, sweep.printed
        assert "The same command resumes" in over[0]
        assert "Traceback" not in sweep.printed
        assert sweep.family.left(seconds=60) == []
