import threading
import time

import pytest

from dml_core.data.parallel import prefetch


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
