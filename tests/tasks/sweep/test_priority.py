"""Priorities of two sweeps on one cluster."""

import json
import logging
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tasks.sweep.priority import FORGOTTEN_AFTER_SECONDS, SECONDS_BETWEEN_CALLS, Board, Turns
from tests.references.ray_clusters import Cluster
from tests.references.tiny_trials import prepare_tiny

ROOT = Path(__file__).parents[3]


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def board(clock):
    return Board(clock)


def join(board, priority, clock):
    """Returns the turns of a driver that has just joined."""
    return Turns(priority, find_board=lambda make: board, clock=clock)


def test_a_lower_priority_starts_nothing_while_trials_of_a_higher_one_wait(board, clock, caplog):
    low, high = join(board, -1, clock), join(board, 0, clock)
    assert low.may_start()
    high.waits = True
    assert high.may_start()
    clock.now += SECONDS_BETWEEN_CALLS
    with caplog.at_level(logging.WARNING):
        assert not low.may_start()
        high.waits = False
        clock.now += SECONDS_BETWEEN_CALLS
        assert high.may_start()
        assert low.may_start()
    held, free = caplog.messages
    assert "trials of priority 0 wait" in held
    assert "ray.priority=-1" in held
    assert "continues" in free


def test_equal_priorities_share_and_a_lower_one_stops_nobody(board, clock):
    low, one, other = (join(board, priority, clock) for priority in (-5, 3, 3))
    for driver in (low, one, other):
        driver.waits = True
        driver.may_start()
    clock.now += SECONDS_BETWEEN_CALLS
    assert one.may_start()
    assert other.may_start()
    assert not low.may_start()


def test_a_driver_that_is_silent_or_has_left_counts_no_longer(board, clock):
    low, high = join(board, 0, clock), join(board, 9, clock)
    high.waits = True
    high.may_start()
    assert not low.may_start()
    clock.now += FORGOTTEN_AFTER_SECONDS + SECONDS_BETWEEN_CALLS
    assert low.may_start()
    high.may_start()
    clock.now += SECONDS_BETWEEN_CALLS
    assert not low.may_start()
    high.leave()
    clock.now += SECONDS_BETWEEN_CALLS
    assert low.may_start()


def test_only_an_unusual_priority_makes_a_board(clock):
    asked: list[bool] = []
    for priority in (0, 2, -2):
        turns = Turns(priority, find_board=asked.append, clock=clock)
        assert turns.may_start()
        turns.leave()
    assert asked == [False, False, True, False, True, False]


def test_the_board_is_asked_twice_a_second_at_most(clock):
    asked: list[bool] = []
    turns = Turns(1, find_board=asked.append, clock=clock)
    for _ in range(100):
        clock.now += SECONDS_BETWEEN_CALLS / 10
        turns.may_start()
    assert 9 <= len(asked) <= 11


DRIVER = """
import json, sys, time
from pathlib import Path
from tasks.sweep.cluster import connect
from tasks.sweep.run import run_sweep
from tests.references.tiny_studies import tiny_pipeline, tiny_study

name, prepared, folder, address, seeds, priority = sys.argv[1:]
folder = Path(folder)
study = tiny_study(Path(prepared), folder, f'''
question: Who goes first?
arms: {{one: {{model.embedding_dim: {4 if name == "low" else 8}}}}}
seeds: {list(range(int(seeds)))}
''', name=name, training__device="cpu", training__epochs=4)
pipeline = tiny_pipeline(ray__address=address, ray__priority=int(priority))
starts = []


def on_start(spec):
    starts.append(time.time())
    (folder / f"{name}-started").touch()


def on_epoch(spec, report):
    # The low one still has trials when the high one starts, which takes seconds to minutes.
    if name == "low" and not (folder / "high-started").exists():
        time.sleep(0.5)


with connect(pipeline.ray):
    run_sweep(study, pipeline, folder=folder / "results/.sweeps" / name, on_epoch=on_epoch,
              on_trial_start=on_start)
(folder / f"{name}-done").touch()
print(json.dumps(starts))
"""


@pytest.mark.integration
def test_an_urgent_sweep_overtakes_one_that_holds_the_whole_cluster(tmp_path):
    prepared = tmp_path / "prepared"
    prepare_tiny(prepared)
    cluster = Cluster(tmp_path, cpus=1)
    try:
        cluster.start_head()
        shared = (prepared, tmp_path, cluster.address)
        low = subprocess.Popen(
            [sys.executable, "-c", DRIVER, "low", *map(str, shared), "60", "-1"],
            cwd=ROOT,
            env=cluster.environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        # Without priorities, Tune keeps the worker of the first sweep until that has ended.
        while not (tmp_path / "low-started").exists():
            assert low.poll() is None
            time.sleep(0.1)
        urgent = json.loads(cluster.run_driver(DRIVER, "high", *shared, "3", "5", folder=ROOT))
        printed, _ = low.communicate(timeout=600)
    finally:
        cluster.stop()
    starts = json.loads(printed.splitlines()[-1])
    assert (len(urgent), len(starts)) == (3, 60)
    between = [start for start in starts if urgent[0] < start < urgent[-1]]
    assert not between
    assert starts[0] < urgent[0]
    assert urgent[-1] < starts[-1]
