"""Reports of epochs are sent once a second at most, and none is lost or out of order."""

from tasks.sweep.job import SECONDS_BETWEEN, EpochReports


class Clock:
    seconds = 100.0

    def __call__(self):
        return self.seconds


def make_reports(*, at_once=False):
    sent, clock = [], Clock()
    send = lambda epochs: sent.append([epoch["epoch"] for epoch in epochs])  # noqa: E731
    return EpochReports(send, at_once=at_once, clock=clock), sent, clock


def epoch(number, of=9):
    return {"epoch": number, "num_epochs": of}


def test_short_epochs_go_together_and_a_long_one_by_itself():
    reports, sent, clock = make_reports()
    for number in (1, 2, 3):
        reports.add(epoch(number))
    assert sent == []
    clock.seconds += SECONDS_BETWEEN
    reports.add(epoch(4))
    assert sent == [[1, 2, 3, 4]]
    reports.add(epoch(5))
    clock.seconds += 5 * SECONDS_BETWEEN
    reports.add(epoch(6))
    assert sent == [[1, 2, 3, 4], [5, 6]]


def test_the_last_epoch_waits_for_nothing():
    reports, sent, _ = make_reports()
    reports.add(epoch(1, of=2))
    reports.add(epoch(2, of=2))
    assert sent == [[1, 2]]
    reports.flush()
    assert sent == [[1, 2]]


def test_what_waits_at_an_early_end_is_sent():
    reports, sent, _ = make_reports()
    reports.add(epoch(1))
    reports.flush()
    assert sent == [[1]]


def test_a_judged_trial_sends_each_epoch_at_once():
    reports, sent, _ = make_reports(at_once=True)
    reports.add(epoch(1))
    reports.add(epoch(2))
    assert sent == [[1], [2]]
