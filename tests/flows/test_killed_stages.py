"""A `dml run` that is killed while it evaluates or reports leaves nothing half done."""

import shutil
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
import yaml

from flows.servers.processes import is_alive
from tasks.run_log import list_logs, read_log
from tests.references.running_servers import DML, make_environment, wait_for
from tests.references.tiny_projects import TWO_ARMS, make_project

pytestmark = [pytest.mark.integration, pytest.mark.slow]
LONG = 400
SCORES = "results/tiny/evaluate/scores.json"
ANSWER = "reports/tiny/answer.json"

STOP_AT = "DML_TEST_STOP_AT"
"""An audit event of Python and a regular expression of a path, with a blank between them."""
HOOK = f'''
import os, re, signal, sys

wanted, expression = os.environ["{STOP_AT}"].split(" ", 1)

def stop_there(event, arguments):
    if event == wanted:
        path, mode = (arguments[1], "w") if event == "os.rename" else arguments[:2]
        if set(str(mode)) & set("wax") and re.search(expression, str(path)):
            os.kill(os.getpid(), signal.SIGSTOP)

sys.addaudithook(stop_there)
'''


def start(folder, **environment):
    """Starts `dml run tiny` in a project; its output goes to a file in its home."""
    with open(folder / "home" / "printed.txt", "w") as printed:
        return subprocess.Popen(
            [str(DML), "run", "tiny"],
            cwd=folder,
            env=make_environment(folder, **environment),
            stdout=printed,
            stderr=printed,
        )


def finish(folder):
    """Gives the same command once more, which must end with 0, and returns its run's log."""
    run = start(folder)
    try:
        code = run.wait(timeout=LONG)
    finally:
        run.kill()
        run.wait()
    assert code == 0, read_printed(folder)
    return list(read_log(list_logs(folder / "results" / ".sweeps" / "tiny")[-1]))


def read_printed(folder):
    return (folder / "home" / "printed.txt").read_text()[-3000:]


def kill_at(folder, moment, look):
    """Kills a run with -9 at the moment when it opens a file for writing or renames it.

    Python's audit events give the moment: the process stops itself just before it.

    Args:
        folder: the project.
        moment: as STOP_AT.
        look: called while the process stands still.

    Returns:
        All processes of the run that lived at that moment.
    """
    hook = folder / "home" / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(HOOK)
    run = start(folder, PYTHONPATH=str(hook), **{STOP_AT: moment})
    process = psutil.Process(run.pid)

    def has_stopped_or_ended():
        return run.poll() is not None or process.status() == psutil.STATUS_STOPPED

    try:
        assert wait_for(has_stopped_or_ended, seconds=LONG), read_printed(folder)
        assert run.returncode is None, f"the moment was missed: {read_printed(folder)}"
        look()
        family = find_processes(folder)
        assert process in family
    finally:
        run.kill()
        run.wait()
    assert run.returncode == -signal.SIGKILL
    return family


def find_processes(folder):
    """All processes whose home is the project's, and their descendants."""
    found = set()
    for process in psutil.process_iter():
        try:
            if process.environ().get("HOME") == str(folder / "home"):
                found |= {process, *process.children(recursive=True)}
        except (OSError, psutil.Error):
            continue
    return found


def assert_all_end(processes):
    def find_living():
        return [process for process in processes if is_alive(process)]

    assert wait_for(lambda: not find_living(), seconds=90), find_living()


def list_locked(folder):
    """The stages that dvc.lock names."""
    return set(yaml.safe_load((folder / "dvc.lock").read_text())["stages"])


def assert_nothing_was_trained(log):
    assert [line for line in log if line["event"] in ("epoch", "trial runs")] == []


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A project that was answered without a fault."""
    folder = make_project(tmp_path_factory.mktemp("undisturbed"), {"tiny": TWO_ARMS})
    log = finish(folder)
    assert [line for line in log if line["event"] == "epoch"]
    return folder


def test_a_run_killed_in_evaluate_resumes_with_the_same_scores(tmp_path, undisturbed):
    folder = copy_before(undisturbed, tmp_path / "project", "evaluate", "report")

    def look():
        (partial,) = (folder / "results" / "tiny").glob(".evaluate.partial-*")
        assert list(partial.iterdir())
        assert not (folder / "results" / "tiny" / "evaluate").exists()

    killed = kill_at(folder, r"open /\.evaluate\.partial-[^/]*/embeddings\.", look)
    assert_all_end(killed)
    assert not (folder / "results" / "tiny" / "evaluate").exists()
    assert "sweep@tiny" in list_locked(folder)
    assert not list_locked(folder) & {"evaluate@tiny", "report@tiny"}
    log = finish(folder)
    ran = [line["stage"] for line in log if line["event"] == "stage ended"]
    assert ran == ["evaluate", "report"]
    assert_nothing_was_trained(log)
    assert (folder / SCORES).read_bytes() == (undisturbed / SCORES).read_bytes()
    assert not list((folder / "results" / "tiny").glob(".evaluate.*"))
    assert list_locked(folder) == list_locked(undisturbed)


@pytest.mark.parametrize(
    ("moment", "is_whole"),
    [
        pytest.param(
            r"open /\.tiny\.partial-[^/]*/index\.html",
            False,
            id="while the page is written",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            r"os.rename /dvc\.lock$",
            True,
            id="while dvc.lock is written",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_a_run_killed_in_report_resumes_with_the_same_answer(
    tmp_path, undisturbed, moment, is_whole
):
    folder = copy_before(undisturbed, tmp_path / "project", "report")

    def look():
        assert (folder / "reports" / "tiny").exists() == is_whole
        if not is_whole:
            (partial,) = (folder / "reports").glob(".tiny.partial-*")
            assert (partial / "answer.json").exists()

    killed = kill_at(folder, moment, look)
    assert_all_end(killed)
    assert (folder / "reports" / "tiny").exists() == is_whole
    assert "report@tiny" not in list_locked(folder)
    log = finish(folder)
    assert [line["stage"] for line in log if line["event"] == "stage ended"] == ["report"]
    assert_nothing_was_trained(log)
    for name in (SCORES, ANSWER, "dvc.lock"):
        assert (folder / name).read_bytes() == (undisturbed / name).read_bytes(), name
    assert not list((folder / "reports").glob(".tiny.*"))


OUTPUTS = {"evaluate": "results/tiny/evaluate", "report": "reports/tiny"}


def copy_before(project: Path, target: Path, *stages: str) -> Path:
    """Copies a project as it was before its last stages."""
    shutil.copytree(project, target, symlinks=True)
    lock = yaml.safe_load((target / "dvc.lock").read_text())
    for stage in stages:
        shutil.rmtree(target / OUTPUTS[stage])
        del lock["stages"][f"{stage}@tiny"]
    (target / "dvc.lock").write_text(yaml.safe_dump(lock, sort_keys=False))
    return target
