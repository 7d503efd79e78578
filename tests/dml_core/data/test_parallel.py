"""Tests of parallel maps and prefetching."""

import os
import threading
import time

import pytest

from dml_core.data.parallel import count_cores, map_in_order, prefetch
from dml_core.data.records import DatasetError


def square_with_process(number):
    return number * number, os.getpid()


def fail_on_three(number):
    if number == 3:
        raise ValueError("three")
    return number


def die(number):
    os._exit(1)


def test_one_worker_stays_in_this_process():
    results = list(map_in_order(square_with_process, range(10), workers=1, chunk_size=2))
    assert results == [(n * n, os.getpid()) for n in range(10)]


def test_a_single_chunk_starts_no_process():
    results = list(map_in_order(square_with_process, [3], workers=4, chunk_size=8))
    assert results == [(9, os.getpid())]


def test_several_workers_keep_the_order():
    results = list(map_in_order(square_with_process, range(23), workers=2, chunk_size=2))
    assert [value for value, _ in results] == [n * n for n in range(23)]
    assert os.getpid() not in {process for _, process in results}


def test_nothing_gives_nothing():
    assert list(map_in_order(square_with_process, [], workers=2, chunk_size=2)) == []


def test_an_error_in_a_worker_reaches_the_caller():
    with pytest.raises(ValueError, match="three"):
        list(map_in_order(fail_on_three, range(8), workers=2, chunk_size=1))


def test_a_worker_that_dies_is_reported():
    with pytest.raises(DatasetError, match=r"a worker process died .*fewer workers \(now 2\)"):
        list(map_in_order(die, range(4), workers=2, chunk_size=1))


def test_a_consumer_may_stop_early():
    results = map_in_order(square_with_process, range(1000), workers=2, chunk_size=1)
    assert next(results)[0] == 0
    results.close()
    with pytest.raises(StopIteration):
        next(results)


def test_there_is_at_least_one_core():
    assert 1 <= count_cores() <= os.cpu_count()


@pytest.mark.parametrize("workers", [0, 1, 2, 5])
def test_results_come_in_order_whatever_the_workers(workers):
    def make(number):
        time.sleep(0.002 * (number % 3))
        return number * number

    assert list(prefetch(make, range(30), workers=workers)) == [n * n for n in range(30)]


def test_it_reads_only_a_little_ahead():
    started = []

    def make(number):
        started.append(number)
        return number

    stream = prefetch(make, range(100), workers=1)
    next(stream)
    time.sleep(0.05)
    assert len(started) <= 4
    stream.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_reaches_the_reader(workers):
    def make(number):
        return 1 / (number - 3)

    with pytest.raises(ZeroDivisionError):
        list(prefetch(make, range(10), workers=workers))


def test_no_thread_is_left_when_the_reader_stops_early():
    before = threading.active_count()
    stream = prefetch(lambda n: n, range(1000), workers=3)
    next(stream)
    stream.close()
    assert threading.active_count() == before
