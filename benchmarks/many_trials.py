"""What a driver needs for many trials: time and memory for each, and to know them again."""

from collections.abc import Sequence

from benchmarks.bucket_trials import read_bucket
from benchmarks.rows import Row, make_row
from benchmarks.stub_sweeps import Led, lead_stubs

GROUP = "scale"
COUNTS = (100, 1_000)
"""Ten thousand take half an hour: `measure_trials([10_000])`."""
IN_A_BUCKET = 10_000
WORKERS = 2


def measure_trials(counts: Sequence[int] = COUNTS, in_a_bucket: int = IN_A_BUCKET) -> list[Row]:
    """Returns the rows of sweeps of so many trials, and of a bucket with so many."""
    rows = [row for count in counts for row in _describe(count, lead_stubs(count, nodes=WORKERS))]
    known = read_bucket(in_a_bucket, is_indexed=True)
    row = make_row(
        GROUP,
        f"{in_a_bucket:,} ended trials in a bucket, known to a driver",
        ours=[known.driver],
        theirs=[known.listing],
        target=1.3,
        unit="s",
        against="the listing of the objects alone",
        note="an S3 server in Python on the same machine",
    )
    return [*rows, row]


def _describe(count: int, led: Led) -> list[Row]:
    name = f"{count:,} trials without length"
    rows = [
        make_row(
            GROUP,
            f"{name}, driver's processor time a trial",
            ours=[1000 * led.driver_seconds / count],
            target=42.0,
            note=f"{WORKERS} workers, {count / (led.ends[-1] - led.ends[0]):.0f} trials a second; "
            f"recorded in MLflow after {led.seconds:.0f} s",
        ),
        make_row(
            GROUP,
            f"{name}, driver's memory a trial",
            ours=[1024 * led.grown_mebibytes / count],
            target=64.0,
            unit="KiB",
        ),
        make_row(
            GROUP, f"{name}, known to a later driver", ours=[led.resume_seconds], target=10.0,
            unit="s",
        ),
    ]  # fmt: skip
    if count < 1_000:
        # The start weighs too much.
        return rows
    first, last = quarter_rates(led.ends)
    row = make_row(
        GROUP,
        f"{name}, speed of the last quarter",
        ours=[last],
        theirs=[first],
        target=0.9,
        direction="at least",
        unit="trials/s",
        against="the first quarter",
    )
    began, now = quarter_costs(led.processor_times)
    cost = make_row(
        GROUP,
        f"{name}, driver's processor time a trial in the last quarter",
        ours=[1000 * now],
        theirs=[1000 * began],
        target=1.1,
        against="the first quarter",
        note="does not depend on what else the machine does",
    )
    return [*rows, row, cost]


def quarter_costs(processor_times: Sequence[float]) -> tuple[float, float]:
    """Returns the processor seconds of a trial in the first and in the last quarter."""
    size, times = len(processor_times) // 4, processor_times
    return (times[size] - times[0]) / size, (times[-1] - times[-1 - size]) / size


def quarter_rates(ends: Sequence[float]) -> tuple[float, float]:
    """Returns the trials per second of the first and of the last quarter."""
    size = len(ends) // 4
    return size / (ends[size] - ends[0]), size / (ends[-1] - ends[-1 - size])
