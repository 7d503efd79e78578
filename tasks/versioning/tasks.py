"""Prefect tasks that ask DVC whether a stage is stale, and record one that is done."""

from prefect import get_run_logger, task

from tasks.machine_faults import is_momentary
from tasks.step_progress import shown_step
from tasks.versioning.repo import StageChanged, StageOrigin
from tasks.versioning.stages import PinnedRun, describe_change, is_stage_stale, record_stage


# Neither has a time-out: the time for hashing grows with the data, and the wait for DVC's lock has
# its own limit.
@task(
    task_run_name="is {stage} stale?",
    retries=2,
    retry_delay_seconds=[2, 10],
    retry_condition_fn=is_momentary,
)
def is_stale(stage: str, run: PinnedRun) -> bool:
    """Returns whether a stage must run; always true for a run that DVC does not version.

    Call it for each stage when its turn comes: the stages before it may make it stale. Writes
    nothing, so running it twice is safe; waits while another process holds DVC's lock.
    """
    with shown_step(f"hashing the inputs of {stage}"):
        return is_stage_stale(stage, run, on_wait=get_run_logger().warning)


@task(
    task_run_name="commit {stage}",
    retries=2,
    retry_delay_seconds=[2, 10],
    retry_condition_fn=is_momentary,
)
def commit_stage(stage: str, run: PinnedRun, origin: StageOrigin | None) -> list[str]:
    """Writes a finished stage to dvc.lock; does nothing where DVC does not version the run.

    Running it twice is safe. Waits while another process holds DVC's lock, and keeps the other
    process's entries in dvc.lock. Logs the inputs that changed since the stage began.

    Returns:
        The inputs that changed.
    """
    logger = get_run_logger()
    try:
        with shown_step(f"adding {stage} to DVC"):
            changes = record_stage(stage, run.request, origin=origin, on_wait=logger.warning)
    except StageChanged as error:
        logger.warning("%s", error)
        return ["dvc.yaml"]
    if changes:
        logger.warning("%s", describe_change(stage, run.request, changes))
    return changes
