import logging
import os
import signal

import pytest

from flows.interrupts import stopped_by_signals


@pytest.fixture(autouse=True)
def logging_as_before():
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_in_one_line_and_its_code(number, code, capsys):
    with pytest.raises(SystemExit) as end, stopped_by_signals():
        os.kill(os.getpid(), number)
    assert end.value.code == code
    said = capsys.readouterr().err
    assert said == "dml: interrupted. The same command resumes it.\n"


def stop_and_fail():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except KeyboardInterrupt as error:
        raise RuntimeError("the server does not answer") from error


def test_a_library_that_converts_the_interrupt_does_not_hide_it(capsys):
    with pytest.raises(SystemExit) as end, stopped_by_signals():
        stop_and_fail()
    assert end.value.code == 143
    assert "server" not in capsys.readouterr().err


@pytest.mark.parametrize("error", [ValueError("a mistake"), SystemExit(2)])
def test_other_exceptions_pass_and_the_handlers_are_restored(error):
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    with pytest.raises(type(error)) as end, stopped_by_signals():
        raise error
    assert end.value is error
    assert [signal.getsignal(number) for number in numbers] == before
