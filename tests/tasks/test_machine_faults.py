"""Faults of the machine and momentary errors: what is reported, and what is retried."""

import errno
import os
import platform
import shutil
import subprocess
import sys
import traceback
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from prefect.states import Failed

from dml_core.data.records import DatasetError
from dml_core.trials.key import hash_training_code, read_libraries
from dml_core.trials.objects import BucketUnavailable
from tasks import evaluate as evaluating
from tasks import prepare as datasets
from tasks import report as reporting
from tasks.machine_faults import (
    BucketAway,
    DiskFull,
    DiskReadOnly,
    FolderClosed,
    MachineFault,
    OtherCode,
    OutOfMemory,
    QuotaUsedUp,
    TooManyFiles,
    check_room,
    clear_machine_faults,
    is_momentary,
    is_out_of_memory,
    raise_machine_fault,
    recall_fault,
)
from tasks.sweep import task as sweeps
from tasks.sweep.job import check_code
from tasks.versioning import tasks as versioning

ROOT = Path(__file__).parents[2]
NOBODY = 65534

FULL = OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_reported_with_its_folder_and_how_to_resume(tmp_path):
    wanted = pytest.raises(DiskFull, match=f"{tmp_path} is full.*the same command")
    with wanted, clear_machine_faults(tmp_path):
        raise FULL


def test_a_full_disk_is_found_behind_other_errors(tmp_path):
    wrapped = RuntimeError("unexpected pos")
    wrapped.__cause__ = FULL
    with pytest.raises(DiskFull), clear_machine_faults(tmp_path):
        raise wrapped


def test_other_errors_stay_what_they_are(tmp_path):
    for error in (ValueError("margin"), OSError(errno.EIO, "broken")):
        raise_machine_fault(error, tmp_path)
        with pytest.raises(type(error)), clear_machine_faults(tmp_path):
            raise error


def test_no_more_memory_is_the_machines_fault(tmp_path):
    with pytest.raises(OutOfMemory, match="no more memory for this process: MemoryError"):
        raise_machine_fault(MemoryError(), tmp_path)


def test_torchs_messages_of_missing_memory_are_known():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**62, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOMEM, "Cannot allocate memory", "checkpoints"),
        RuntimeError("can't start new thread"),
        ImportError("libx.so: failed to map segment: Cannot allocate memory"),
    ],
)
def test_pythons_and_the_systems_messages_of_missing_memory_are_known(error):
    assert is_out_of_memory(error)


def test_a_disk_without_room_is_reported_before_anything_starts(tmp_path, monkeypatch):
    check_room(tmp_path)
    usage = shutil.disk_usage(tmp_path)._replace(free=0)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    with pytest.raises(DiskFull, match=f"{tmp_path} is full"):
        check_room(tmp_path)


def raised_for(error, folder):
    """Returns the fault that an error of the block becomes."""
    with pytest.raises(MachineFault) as caught, clear_machine_faults(folder):
        raise error
    return caught.value


def recalled(fault, folder):
    """Returns what the text of an exception, which is all that Ray hands on, tells of it."""
    return recall_fault("".join(traceback.format_exception(fault)), folder)


def test_a_full_disk_is_found_without_the_traceback_that_it_has_no_room_for(tmp_path, monkeypatch):
    assert recall_fault("", tmp_path) is None
    usage = shutil.disk_usage(tmp_path)._replace(free=0)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    assert type(recall_fault("", tmp_path)) is DiskFull


def test_a_used_up_quota_is_reported(tmp_path):
    fault = raised_for(OSError(errno.EDQUOT, "Disk quota exceeded"), tmp_path)
    assert type(fault) is QuotaUsedUp
    assert f"quota on the disk that holds {tmp_path} is used up" in str(fault)
    assert str(fault).endswith("the same command resumes.")
    again = recalled(fault, tmp_path)
    assert (type(again), str(again)) == (QuotaUsedUp, str(fault))


def test_a_read_only_disk_is_reported(tmp_path):
    wrapped = RuntimeError("the writer failed")
    wrapped.__cause__ = OSError(errno.EROFS, "Read-only file system")
    with pytest.raises(DiskReadOnly, match=f"{tmp_path} is mounted read-only.*Mount it writable"):
        raise_machine_fault(wrapped, tmp_path)
    again = recalled(raised_for(wrapped, tmp_path), tmp_path)
    assert type(again) is DiskReadOnly


NO_DESCRIPTORS = """
import resource, sys
from pathlib import Path
from tasks.machine_faults import clear_machine_faults

folder, held = Path(sys.argv[1]), []
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
try:
    with clear_machine_faults(folder):
        while True:
            held.append(open(folder / "file", "w"))
except ValueError as fault:
    print(type(fault).__name__, fault)
"""


def test_a_process_without_free_descriptors_is_reported(tmp_path):
    run = subprocess.run(
        [sys.executable, "-c", NO_DESCRIPTORS, str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    kind, _, said = run.stdout.strip().partition(" ")
    assert (kind, said) == ("TooManyFiles", str(TooManyFiles.at(tmp_path)))
    assert "ulimit -n" in said


@contextmanager
def without_rights(folder):
    """Lets this process write to the folder no more within the block, also where it is root's."""
    is_root, mode = os.geteuid() == 0, folder.stat().st_mode
    folder.chmod(0o500)
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        folder.chmod(mode)


def test_a_folder_without_write_permission_is_reported(tmp_path):
    with without_rights(tmp_path), pytest.raises(PermissionError) as caught:
        (tmp_path / "result.json").write_text("{}")
    fault = raised_for(caught.value, tmp_path)
    assert type(fault) is FolderClosed
    assert f"may not write to {tmp_path}, " in str(fault)
    assert type(recalled(fault, tmp_path)) is FolderClosed


def test_a_file_elsewhere_that_may_not_be_read_is_no_matter_of_the_results(tmp_path):
    error = PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "data" / "1.png"))
    with pytest.raises(PermissionError), clear_machine_faults(tmp_path / "results"):
        raise error
    raise_machine_fault(error, tmp_path / "results")


def test_a_fault_keeps_the_folder_that_it_was_raised_for(tmp_path):
    inner = DiskFull.at(tmp_path / "inner")
    assert raised_for(inner, tmp_path) is inner


def test_an_error_of_the_trial_is_recalled_as_no_fault(tmp_path):
    assert recalled(ValueError("margin must be positive"), tmp_path) is None


def test_other_code_or_libraries_of_a_worker_are_reported_with_both_versions(tmp_path):
    code, libraries = hash_training_code(), read_libraries()
    check_code(code, libraries)
    check_code("", {})
    with pytest.raises(OtherCode, match=rf"{platform.node()}.*\({code}\).*\(0ther\)") as caught:
        check_code("0ther", libraries)
    again = recalled(caught.value, tmp_path)
    assert (type(again), str(again)) == (OtherCode, str(caught.value))
    with pytest.raises(OtherCode, match=r"started with .*torch 0\.1.*requirements\.lock"):
        check_code(code, {**libraries, "torch": "0.1"})


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(5, "Input/output error"), True),
        (TimeoutError("the disk did not answer"), True),
        (ConnectionResetError("peer is gone"), True),
        (FileNotFoundError("no such file"), False),
        (PermissionError("not yours"), False),
        (DatasetError("two classes are needed"), False),
        (ValueError("sweep.seed must be >= 0"), False),
    ],
)
def test_only_momentary_errors_are_retried(error, expected):
    assert is_momentary(None, None, Failed(data=error)) is expected


@pytest.mark.parametrize(
    "task",
    [
        datasets.prepare_data,
        sweeps.sweep_study,
        evaluating.evaluate_study,
        reporting.write_report,
        versioning.is_stale,
        versioning.commit_stage,
    ],
    ids=lambda task: task.name,
)
def test_every_task_retries_only_after_momentary_errors(task):
    assert task.retries >= 1
    assert task.retry_delay_seconds
    assert task.retry_condition_fn is is_momentary


def test_a_bucket_that_stays_away_stops_the_run_and_is_no_trials_failure(tmp_path):
    away = BucketUnavailable("s3://bucket/a did not answer for 600 s: refused")
    message = r"^s3://bucket/a did not answer for 600 s: refused The run was stopped; all finished"
    with pytest.raises(BucketAway, match=message), clear_machine_faults(tmp_path):
        raise RuntimeError("wrapped") from away
    with pytest.raises(BucketAway, match=message) as raised:
        raise_machine_fault(away, tmp_path)
    # The driver knows it by the text of a worker's traceback.
    text = f"Traceback ...\ntasks.machine_faults.BucketAway: {raised.value}\n"
    fault = recall_fault(text, tmp_path)
    assert (type(fault), str(fault)) == (BucketAway, str(raised.value))
