import errno
import shutil

import pytest
import torch

from tasks.machine_faults import (
    DiskFull,
    OutOfMemory,
    check_room,
    is_out_of_memory,
    raise_machine_fault,
    told_when_full,
)

FULL = OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_told_with_its_folder_and_the_way_to_go_on(tmp_path):
    wanted = pytest.raises(DiskFull, match=f"{tmp_path} is full.*the same command")
    with wanted, told_when_full(tmp_path):
        raise FULL


def test_a_full_disk_is_found_behind_other_errors(tmp_path):
    wrapped = RuntimeError("unexpected pos")
    wrapped.__cause__ = FULL
    with pytest.raises(DiskFull), told_when_full(tmp_path):
        raise wrapped


def test_other_errors_stay_what_they_are(tmp_path):
    for error in (ValueError("margin"), OSError(errno.EIO, "broken")):
        raise_machine_fault(error, tmp_path)
        with pytest.raises(type(error)), told_when_full(tmp_path):
            raise error


def test_no_more_memory_is_the_machines_fault(tmp_path):
    with pytest.raises(OutOfMemory, match="no more memory for this process: MemoryError"):
        raise_machine_fault(MemoryError(), tmp_path)


def test_what_torch_says_of_missing_memory_is_known():
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
def test_so_is_what_python_and_the_system_say_of_it(error):
    assert is_out_of_memory(error)


def test_a_disk_without_room_is_told_before_anything_is_begun(tmp_path, monkeypatch):
    check_room(tmp_path)
    usage = shutil.disk_usage(tmp_path)._replace(free=0)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    with pytest.raises(DiskFull, match=f"{tmp_path} is full"):
        check_room(tmp_path)
