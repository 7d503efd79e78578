import threading

from tasks.watchdog import Watchdog


def test_a_process_that_hangs_is_ended_after_its_last_words():
    said, ended = [], threading.Event()
    dog = Watchdog(
        0.02, before_exit=lambda: said.append("hung"), exit_process=lambda code: ended.set()
    )
    with dog:
        assert ended.wait(5)
    assert said == ["hung"]


def test_a_pause_is_not_watched():
    ended = threading.Event()
    dog = Watchdog(0.02, before_exit=lambda: None, exit_process=lambda code: ended.set())
    with dog, dog.paused():
        assert not ended.wait(0.1)


def test_nothing_is_watched_after_the_end_or_without_a_limit():
    ended = threading.Event()
    for seconds in (0.02, 0.0):
        dog = Watchdog(seconds, before_exit=lambda: None, exit_process=lambda code: ended.set())
        with dog:
            pass
    assert not ended.wait(0.1)
