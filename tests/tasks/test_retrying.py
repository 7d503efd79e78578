import pytest
from prefect.states import Failed

from dml_core.data.records import DatasetError
from tasks import evaluate as evaluating
from tasks import prepare as datasets
from tasks import report as reporting
from tasks.retrying import is_momentary
from tasks.sweep import task as sweeps
from tasks.versioning import tasks as versioning


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(5, "Input/output error"), True),
        (TimeoutError("the disk did not answer"), True),
        (ConnectionResetError("peer is gone"), True),
        (FileNotFoundError("no such file"), False),
        (PermissionError("not yours"), False),
        (DatasetError("two classes are needed"), False),
        (ValueError("sweep.seed must be >= 0"), False),
    ],
)
def test_only_momentary_errors_are_retried(error, expected):
    assert is_momentary(None, None, Failed(data=error)) is expected


@pytest.mark.parametrize(
    "task",
    [
        datasets.prepare_data,
        sweeps.sweep_study,
        evaluating.evaluate_study,
        reporting.write_report,
        versioning.is_stale,
        versioning.commit_stage,
    ],
    ids=lambda task: task.name,
)
def test_every_task_retries_only_after_momentary_errors(task):
    assert task.retries >= 1
    assert task.retry_delay_seconds
    assert task.retry_condition_fn is is_momentary
