"""Checks cron expressions, and tells when they come due."""

import asyncio
from datetime import datetime

EXAMPLES = '"0 2 * * *" (every night at 02:00 UTC), "0 4 * * sun" (Sundays at 04:00 UTC)'


def next_dates(cron: str, *, count: int = 2) -> list[datetime]:
    """Returns when a cron expression comes due next, in UTC.

    Raises:
        ValueError: when it is no cron expression, or when it never comes due. Prefect's own check
            accepts the 31st of February, and its scheduler then fails on it at every round.
    """
    # The import takes a second, so that it waits for the first schedule.
    from prefect.server.schemas.schedules import CronSchedule

    if not cron.startswith("@") and len(cron.split()) != 5:
        raise ValueError(
            f"--cron must have five fields: minute, hour, day of month, month, day of week. "
            f"Got {cron!r} with {len(cron.split())}. Examples: {EXAMPLES}."
        )
    try:
        schedule = CronSchedule(cron=cron, timezone="UTC")
        dates = asyncio.run(schedule.get_dates(count))
    except Exception as error:
        raise ValueError(
            f"--cron {cron!r} never comes due or is no cron expression. Its fields are minute "
            "(0-59), hour (0-23), day of month (1-31), month (1-12), day of week (0-6 or sun-sat). "
            f"Examples: {EXAMPLES}."
        ) from error
    return list(dates)
