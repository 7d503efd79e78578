"""Tests of folders that appear whole or not at all."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from dml_core.data.atomic_folder import folder_lock, remove_leftovers, replaced_folder

KILLED = """
import sys, time
from pathlib import Path
from dml_core.data.atomic_folder import folder_lock, replaced_folder
target = Path(sys.argv[1])
with folder_lock(target), replaced_folder(target) as partial:
    (partial / "half").write_text("half")
    print("ready", flush=True)
    time.sleep(60)
"""


def names_in(folder):
    return sorted(entry.name for entry in folder.iterdir())


def make(target, text):
    with folder_lock(target), replaced_folder(target) as partial:
        (partial / "content").write_text(text)


def test_the_folder_appears_at_the_end_and_nothing_else_stays(tmp_path):
    target = tmp_path / "deep" / "made"
    with folder_lock(target), replaced_folder(target) as partial:
        (partial / "content").write_text("new")
        assert not target.exists()
    assert (target / "content").read_text() == "new"
    assert names_in(target.parent) == ["made"]


def test_an_older_folder_is_replaced_whole(tmp_path):
    target = tmp_path / "made"
    make(target, "old")
    (target / "extra").write_text("from before")
    make(target, "new")
    assert names_in(target) == ["content"]
    assert (target / "content").read_text() == "new"
    assert names_in(tmp_path) == ["made"]


def test_an_error_leaves_the_older_folder_and_no_trace(tmp_path):
    target = tmp_path / "made"
    make(target, "old")

    def fail_midway():
        with folder_lock(target), replaced_folder(target) as partial:
            (partial / "content").write_text("new")
            raise RuntimeError("midway")

    with pytest.raises(RuntimeError, match="midway"):
        fail_midway()
    assert (target / "content").read_text() == "old"
    assert names_in(tmp_path) == ["made"]


def test_a_killed_process_blocks_no_other_and_its_leftovers_are_removed(tmp_path):
    target = tmp_path / "made"
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(target)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "ready\n"
        os.kill(process.pid, signal.SIGKILL)
    assert len(names_in(tmp_path)) == 2
    assert not target.exists()
    make(target, "new")
    assert names_in(tmp_path) == ["made"]


def test_a_folder_moved_aside_by_a_killed_process_comes_back(tmp_path):
    target = tmp_path / "made"
    make(target, "old")
    target.rename(tmp_path / ".made.former")
    remove_leftovers(target)
    assert (target / "content").read_text() == "old"
    assert names_in(tmp_path) == ["made"]


def test_a_former_folder_beside_a_whole_one_is_removed(tmp_path):
    target = tmp_path / "made"
    make(target, "new")
    (tmp_path / ".made.former").mkdir()
    (tmp_path / ".other.partial-1").mkdir()
    remove_leftovers(target)
    assert names_in(tmp_path) == [".other.partial-1", "made"]


def test_a_link_to_a_folder_elsewhere_stays_a_link(tmp_path):
    real = tmp_path / "disk" / "real"
    make(real, "old")
    link = tmp_path / "link"
    link.symlink_to(real)
    make(link, "new")
    assert link.is_symlink()
    assert (real / "content").read_text() == "new"


def test_two_makers_take_turns(tmp_path):
    target, order = tmp_path / "made", []

    def second():
        with folder_lock(target):
            order.append("second")

    thread = threading.Thread(target=second)
    with folder_lock(target):
        thread.start()
        time.sleep(0.1)
        order.append("first")
    thread.join(timeout=10)
    assert order == ["first", "second"]
    assert names_in(tmp_path) == []
