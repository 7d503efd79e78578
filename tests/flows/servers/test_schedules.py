"""Cron expressions are checked before a server gets them."""

from datetime import UTC, datetime

import pytest

from flows.servers.schedules import next_dates


@pytest.fixture(autouse=True)
def _prefect_at_home_in_a_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))


def test_the_next_dates_are_in_utc():
    first, second = next_dates("30 2 * * *")
    assert (first.hour, first.minute) == (2, 30)
    assert first.utcoffset().total_seconds() == 0
    assert first > datetime.now(UTC)
    assert (second - first).total_seconds() == 24 * 3600


@pytest.mark.parametrize("cron", ["@daily", "*/5 * * * mon-fri", "0 0 29 2 *"])
def test_cron_expressions_are_accepted(cron):
    assert len(next_dates(cron, count=3)) == 3


@pytest.mark.parametrize("cron", ["61 * * * *", "0 0 31 2 *", "@now", "a b c d e"])
def test_what_never_comes_due_is_refused(cron):
    with pytest.raises(ValueError, match=f"--cron '{cron}' never comes due".replace("*", r"\*")):
        next_dates(cron)


@pytest.mark.parametrize(("cron", "count"), [("", 0), ("0 2 * *", 4), ("0 0 2 * * *", 6)])
def test_another_number_of_fields_is_refused(cron, count):
    with pytest.raises(ValueError, match=rf"five fields[\s\S]* with {count}\. Examples"):
        next_dates(cron)
