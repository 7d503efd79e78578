import os
import shutil
from pathlib import Path

import pytest

from dml_core.trials.ledger import (
    LOCK_FILE,
    SweepFolderGone,
    SweepIsRunning,
    check_is_free,
    hold_folder,
)
from flows.commands.run import run
from tasks.study import StudyRequest, load_context
from tests.references.tiny_projects import TWO_ARMS


def test_a_second_sweep_is_refused_with_the_holder_of_the_folder(tmp_path):
    with hold_folder(tmp_path):
        for _ in range(2):
            with (
                pytest.raises(SweepIsRunning, match=f"process {os.getpid()} on "),
                hold_folder(tmp_path),
            ):
                pass


def test_the_folder_is_free_again_afterwards(tmp_path):
    with hold_folder(tmp_path):
        pass
    with hold_folder(tmp_path):
        pass


def test_a_folder_in_use_is_refused_before_a_sweep_begins(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text("seed: 0\n")
    Path("studies").mkdir()
    Path("studies/tiny.yaml").write_text(TWO_ARMS)
    folder = load_context(StudyRequest(study="tiny")).working_folder
    check_is_free(folder)
    assert not folder.exists()
    with hold_folder(folder):
        holder = (folder / LOCK_FILE).read_text()
        with pytest.raises(SweepIsRunning, match=rf"process {os.getpid()} on .*Wait for it"):
            check_is_free(folder)
        with pytest.raises(SweepIsRunning, match=f"process {os.getpid()} on "):
            run(["tiny"])
        assert (folder / LOCK_FILE).read_text() == holder
    check_is_free(folder)


def delete_and_read(folder):
    shutil.rmtree(folder)
    (folder / "trials.parquet").read_bytes()


def test_a_folder_that_was_deleted_meanwhile_is_reported_instead_of_the_error(tmp_path):
    folder = tmp_path / "sweep"
    with pytest.raises(OSError, match="disk is full"), hold_folder(folder):
        raise OSError("disk is full")
    with (
        pytest.raises(SweepFolderGone, match=r"sweep was deleted while.*same command") as caught,
        hold_folder(folder),
    ):
        delete_and_read(folder)
    assert isinstance(caught.value.__cause__, FileNotFoundError)
