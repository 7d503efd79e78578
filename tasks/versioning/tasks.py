"""Asks DVC whether a stage is stale, and records when one is done."""

from prefect import get_run_logger, task

from tasks.retrying import is_momentary
from tasks.versioning.repo import StageChanged, StageOrigin
from tasks.versioning.stages import PinnedRun, describe_change, is_stage_stale, record_stage


# Neither has a time-out: hashing takes as long as the data are large, and the wait for DVC's lock
# has a limit of its own.
@task(
    task_run_name="is {stage} stale?",
    retries=2,
    retry_delay_seconds=[2, 10],
    retry_condition_fn=is_momentary,
)
def is_stale(stage: str, run: PinnedRun) -> bool:
    """Tells whether a stage must run; a run that DVC does not know always must.

    Ask anew for each stage when its turn comes: whether it is stale shows only after those before
    it have run. Writes nothing; waits while another process holds DVC's lock.
    """
    return is_stage_stale(stage, run, on_wait=get_run_logger().warning)


@task(
    task_run_name="commit {stage}",
    retries=2,
    retry_delay_seconds=[2, 10],
    retry_condition_fn=is_momentary,
)
def commit_stage(stage: str, run: PinnedRun, origin: StageOrigin | None) -> list[str]:
    """Writes to dvc.lock that a stage is done; nothing for a run that DVC does not know.

    Running it twice is safe. Waits while another process holds DVC's lock, and keeps what that
    one wrote to dvc.lock. Where a file changed since the stage began, one line says so.

    Returns:
        What changed.
    """
    logger = get_run_logger()
    try:
        changes = record_stage(stage, run.request, origin=origin, on_wait=logger.warning)
    except StageChanged as error:
        logger.warning("%s", error)
        return ["dvc.yaml"]
    if changes:
        logger.warning("%s", describe_change(stage, run.request, changes))
    return changes
