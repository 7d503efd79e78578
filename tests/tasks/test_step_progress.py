import io
import threading

import pytest

from tasks import step_progress
from tasks.step_progress import StepProgress, shown_step


class Lines(io.StringIO):
    """A pipe that reports each line."""

    def __init__(self):
        super().__init__()
        self.arrived = threading.Semaphore(0)

    def flush(self):
        self.arrived.release()


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(step_progress, "QUIET_SECONDS", 0.05)
    monkeypatch.setattr(step_progress, "SECONDS_BETWEEN_LINES", 0.05)


def test_a_short_step_shows_nothing():
    pipe = io.StringIO()
    with shown_step("preparing birds", stream=pipe) as progress:
        progress.count(1, 2)
    assert pipe.getvalue() == ""


def test_a_long_step_prints_plain_lines_into_a_pipe(short):
    pipe = Lines()
    with shown_step("evaluating main", stream=pipe) as progress:
        progress.count(3, 48)
        assert pipe.arrived.acquire(timeout=60)
        progress.say("drawing")
        # The line after the next was surely written after the change.
        assert pipe.arrived.acquire(timeout=60)
        assert pipe.arrived.acquire(timeout=60)
    lines = pipe.getvalue().splitlines()
    assert lines[0] == "evaluating main: 3 of 48, 0 s"
    assert lines[-1].startswith("evaluating main: drawing, ")
    assert "\x1b" not in pipe.getvalue()


def test_an_error_of_the_step_passes_and_ends_the_lines(short):
    pipe = Lines()
    with pytest.raises(ValueError, match="no disk"), shown_step("packing", stream=pipe):
        raise ValueError("no disk")
    assert not [t for t in threading.enumerate() if t.name.endswith("(_print_lines)")]


def test_a_closed_pipe_does_not_end_the_step(short):
    class Closed(Lines):
        def write(self, text):
            self.flush()
            raise BrokenPipeError

    pipe = Closed()
    with shown_step("packing", stream=pipe) as progress:
        assert pipe.arrived.acquire(timeout=60)
        progress.say("still here")
    assert progress.detail == "still here"


def test_a_state_has_what_detail_counts_and_seconds():
    progress = StepProgress("preparing birds", started=0.0)
    assert progress.describe(7.2) == "preparing birds: 7 s"
    progress.count(1200, 8189)
    assert progress.describe(12.0) == "preparing birds: 1,200 of 8,189, 12 s"
