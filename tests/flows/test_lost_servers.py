"""A run whose Prefect server is killed gives its answer all the same."""

import sqlite3
import subprocess
from contextlib import closing

import psutil
import pytest

from flows.servers.processes import find_family
from flows.servers.record import load_records
from tests.references.running_servers import DML, make_environment, run_dml, wait_for
from tests.references.tiny_projects import TWO_ARMS, make_project

pytestmark = [pytest.mark.integration, pytest.mark.slow]
LONG = 300


def find_server(run):
    """The Prefect server of a run that works, or None."""
    for child in psutil.Process(run.pid).children(recursive=True):
        try:
            if "prefect.server.api.server:create_app" in child.cmdline():
                return child
        except psutil.Error:
            continue
    return None


def kill_server(run, *, but=None):
    """Kills the run's server, another one than the one before, and returns it."""

    def find_new():
        found = find_server(run)
        return found if found and found != but else None

    server = wait_for(find_new, seconds=LONG)
    assert server, "the run has no server"
    server.kill()
    return server


def start_run(project, printed):
    """Starts `dml run tiny`; its output goes to a file."""
    with open(printed, "w") as output:
        return subprocess.Popen(
            [str(DML), "run", "tiny"],
            cwd=project,
            env=make_environment(project),
            stdout=output,
            stderr=output,
        )


def assert_is_answered(project):
    """The report is there, and Prefect's record of the run is complete."""
    assert "Which of two losses?" in (project / "reports" / "tiny" / "index.html").read_text()
    with closing(sqlite3.connect(project / ".dml" / "prefect" / "prefect.db")) as database:
        states = set(database.execute("select state_type from flow_run").fetchall())
    assert states == {("COMPLETED",)}


def test_a_run_whose_own_prefect_server_is_killed_in_two_stages_gives_its_answer(tmp_path):
    project = make_project(tmp_path / "project", {"tiny": TWO_ARMS})
    run = start_run(project, tmp_path / "printed.txt")
    try:
        prepared, trials = project / "data" / "prepared", project / "results" / ".trials"
        assert wait_for(lambda: list(prepared.glob("**/*")), seconds=LONG)
        first = kill_server(run)
        assert wait_for(lambda: list(trials.glob("*")), seconds=LONG)
        kill_server(run, but=first)
        code = run.wait(timeout=LONG)
    finally:
        run.kill()
        run.wait()
    said = (tmp_path / "printed.txt").read_text()
    assert code == 0, said
    assert said.count("the Prefect server of this run ended (code -9); it is started again") == 2
    assert_is_answered(project)


@pytest.mark.nightly
def test_a_run_outlives_the_prefect_server_of_dml_up(tmp_path):
    project = make_project(tmp_path / "project", {"tiny": TWO_ARMS})
    ports = ("--prefect-port", "0", "--mlflow-port", "0")
    started = run_dml(project, "up", *ports, "--timeout", "280")
    assert started.returncode == 0, started.stderr
    try:
        server = load_records(project)["prefect"]
        run = start_run(project, tmp_path / "printed.txt")
        try:
            trials = project / "results" / ".trials"
            assert wait_for(lambda: list(trials.glob("*")), seconds=LONG)
            for process in find_family(server.pid, created=server.created):
                process.kill()
            code = run.wait(timeout=LONG)
        finally:
            run.kill()
            run.wait()
        said = (tmp_path / "printed.txt").read_text()
        assert code == 0, said
        # Terminals wrap long lines.
        told = f"the Prefect server at {server.address} is gone; this run starts one in its place"
        assert told in " ".join(said.split())
        assert_is_answered(project)
    finally:
        run_dml(project, "down", "--force")
