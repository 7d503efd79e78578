"""Blows to a running sweep: the same command goes on, and the result is that of a quiet run."""

import shutil
import signal
import time

import pytest

from tests.references.drilled_sweeps import (
    NUM_EPOCHS,
    DrilledSweep,
    make_project,
    read_record,
    read_table,
)
from tests.references.mlflow_servers import MlflowServer

pytestmark = [pytest.mark.integration, pytest.mark.slow]

GOES_ON = "dml: interrupted. The same command goes on where it stopped.\n"
OUTAGE_SECONDS = 60.0


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project that has not run yet."""
    return make_project(tmp_path_factory.mktemp("project"))


@pytest.fixture(scope="module")
def undisturbed(project, tmp_path_factory):
    """The folder of the same project after a sweep that nothing happened to."""
    folder = tmp_path_factory.mktemp("undisturbed") / "project"
    shutil.copytree(project, folder)
    sweep = DrilledSweep(folder)
    try:
        sweep.start()
        sweep.finish()
        assert sweep.left_processes() == []
        assert sweep.left_files() == []
    finally:
        sweep.close()
    return folder


@pytest.fixture
def sweep(project, tmp_path):
    """The sweep in a new copy of the project, not started yet."""
    folder = tmp_path / "project"
    shutil.copytree(project, folder)
    sweep = DrilledSweep(folder)
    yield sweep
    sweep.close()


@pytest.fixture
def server(sweep):
    """A server of MLflow over the project's own database, which the sweep will use."""
    server = MlflowServer(sweep.folder)
    sweep.environment["MLFLOW_TRACKING_URI"] = server.address
    server.start()
    yield server
    server.stop()


def check_same(sweep, undisturbed):
    """The table, and MLflow's record of every run and epoch, are those of the quiet run."""
    assert read_table(sweep.folder) == read_table(undisturbed)
    assert read_record(sweep.folder) == read_record(undisturbed)


def check_nothing_left(sweep):
    assert sweep.left_processes() == []
    assert sweep.left_files() == []


def test_the_undisturbed_sweep_has_each_trial_once(undisturbed):
    trials = [row["trial_id"] for row in read_table(undisturbed)]
    assert len(trials) == 8
    record = read_record(undisturbed)
    # The first is the sweep's own run.
    assert [trial for trial, _, _ in record] == ["", *sorted(trials)]
    assert {status for _, status, _ in record} == {"FINISHED"}
    for _, _, epochs in record[1:]:
        assert [step for step, _ in epochs] == list(range(1, NUM_EPOCHS + 1))


def test_a_sweep_goes_on_after_ctrl_c_and_sigterm_and_kill_of_its_driver(sweep, undisturbed):
    before = {}
    sweep.start()
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)):
        sweep.wait_for_the_middle(num_ended=len(before) + 1)
        assert sweep.hit(number) == code
        check_nothing_left(sweep)
        if number != signal.SIGKILL:
            assert sweep.printed.endswith(GOES_ON)
            assert sweep.printed.count("dml:") == 1
            assert "Traceback" not in sweep.printed
            assert not [status for _, status, _ in read_record(sweep.folder) if status == "RUNNING"]
        ended = sweep.ended()
        assert ended.items() >= before.items(), "a finished trial ran again"
        before = ended
        sweep.start()
    sweep.finish()
    assert len(before) < 6, "the blows came too late to hit anything"
    assert sweep.ended().items() >= before.items(), "a finished trial ran again"
    check_same(sweep, undisturbed)
    check_nothing_left(sweep)


def test_a_killed_trial_worker_changes_nothing(sweep, undisturbed):
    sweep.start()
    sweep.wait_for_the_middle()
    before, hit = sweep.ended(), sweep.running()
    sweep.kill_workers()
    sweep.finish()
    after = sweep.ended()
    assert after.items() >= before.items(), "a finished trial ran again"
    assert any(len(after[trial][0]) > 1 for trial in hit), "no trial was hit"
    check_same(sweep, undisturbed)
    check_nothing_left(sweep)


def test_an_mlflow_server_that_is_away_for_a_minute_changes_nothing(sweep, server, undisturbed):
    sweep.start()
    sweep.wait_for_the_middle()
    before = len(sweep.ended())
    server.stop()
    gone = time.monotonic()
    # Trials end meanwhile; the next ones are held up, so that the sweep outlasts the minute.
    sweep.wait_for_the_middle(num_ended=before + 2)
    with sweep.held_workers():
        sweep.wait_for(lambda: time.monotonic() - gone > OUTAGE_SECONDS, "the minute's end")
        assert "The sweep goes on, and the record follows." in sweep.printed
        server.start()
    sweep.finish()
    assert "MLflow answers again; nothing was lost." in sweep.printed
    check_same(sweep, undisturbed)
    check_nothing_left(sweep)
