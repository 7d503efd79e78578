import subprocess
import sys
import threading

import pytest

from tasks.sweep import aside
from tasks.sweep.aside import done_aside


def test_the_block_waits_for_the_first_work_and_its_end_for_the_later():
    may_begin, may_end, done = threading.Event(), threading.Event(), []

    def first():
        may_begin.wait(10)
        done.append("first")

    def later():
        may_end.wait(10)
        done.append("later")

    with done_aside(first, later) as wait:
        assert done == []
        may_begin.set()
        wait()
        assert done == ["first"]
        may_end.set()
    assert done == ["first", "later"]


def test_an_error_of_the_work_is_raised_where_the_block_waits_and_the_later_is_not_begun():
    done = []

    def fail():
        raise ValueError("the store is away")

    def run(block):
        with done_aside(fail, lambda: done.append("later")) as wait:
            block(wait)

    for block in (lambda wait: (wait(), done.append("block")), lambda wait: None):
        with pytest.raises(ValueError, match="the store is away"):
            run(block)
    assert done == []


def test_a_block_that_fails_does_not_wait_for_work_that_hangs(monkeypatch):
    monkeypatch.setattr(aside, "LONGEST_SECONDS", 0.01)
    is_over = threading.Event()
    with pytest.raises(KeyError, match="of the block"), done_aside(lambda: is_over.wait(30)):
        raise KeyError("of the block")
    assert not is_over.is_set()
    is_over.set()


def test_the_driver_needs_no_torch_until_a_sweep_begins():
    modules = "tasks.sweep.run, tasks.sweep.tune, tasks.tracking.sync"
    code = f"import sys, {modules}; assert 'ray.tune' in sys.modules; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
