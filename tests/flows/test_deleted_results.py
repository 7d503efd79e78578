"""A `dml run` whose results/ is deleted while it sweeps ends in one line and can be repeated."""

import shutil
import subprocess

import pytest

from tests.references.running_servers import DML, make_environment, wait_for
from tests.references.tiny_projects import ENDLESS, TWO_ARMS, make_project

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.nightly]
LONG = 400


def run_tiny(folder):
    printed = open(folder / "home" / "printed.txt", "w")  # noqa: SIM115
    with printed:
        return subprocess.Popen(
            [str(DML), "run", "tiny"],
            cwd=folder,
            env=make_environment(folder),
            stdout=printed,
            stderr=subprocess.STDOUT,
        )


def read_printed(folder):
    return (folder / "home" / "printed.txt").read_text()


def test_results_deleted_in_mid_sweep_are_named_and_made_again(tmp_path):
    folder = make_project(tmp_path / "project", {"tiny": ENDLESS})
    run = run_tiny(folder)
    try:
        trains = wait_for(
            lambda: run.poll() is not None or list(folder.glob("results/.trials/*/epochs.jsonl")),
            seconds=LONG,
        )
        assert trains, read_printed(folder)
        assert run.returncode is None, read_printed(folder)
        # Workers may write a file into a folder that is being deleted.
        assert wait_for(lambda: not delete(folder / "results").exists(), seconds=30)
        assert run.wait(timeout=LONG) == 2, read_printed(folder)
    finally:
        run.kill()
        run.wait()
    printed = read_printed(folder)
    assert "Traceback" not in printed
    assert "results" in printed.splitlines()[-1]
    assert "sweep@tiny" not in (folder / "dvc.lock").read_text()

    (folder / "studies" / "tiny.yaml").write_text(TWO_ARMS, encoding="utf-8")
    again = run_tiny(folder)
    try:
        assert again.wait(timeout=LONG) == 0, read_printed(folder)
    finally:
        again.kill()
        again.wait()
    assert (folder / "results/tiny/evaluate/scores.json").exists()


def delete(folder):
    shutil.rmtree(folder, ignore_errors=True)
    return folder
