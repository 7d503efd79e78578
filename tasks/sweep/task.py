"""Searches and repeats a study's arms on a Ray cluster, recorded in MLflow."""

from pathlib import Path

from prefect import task

from dml_core.studies.own_code_checks import check_own_code
from tasks.machine_faults import clear_machine_faults, is_momentary
from tasks.run_log import TrialLog, in_turn, logged_run
from tasks.study import StudyRequest, load_context
from tasks.versioning.restoring import ensure_whole


# No time-out of Prefect, which would end the driver and leave the trials: sweep.timeout_seconds
# stops them first. The sweep itself handles failed trials, so they are no reason for a retry.
@task(retries=1, retry_delay_seconds=30, retry_condition_fn=is_momentary)
def sweep_study(request: StudyRequest, show: str = "auto", seconds: float | None = None) -> Path:
    """Writes trials.parquet and the winners; a killed sweep resumes.

    Args:
        request: the study.
        show: how progress is shown: auto (a live table in a terminal), json, or none.
        seconds: how long it may take; None sets no limit.
    """
    # Late: a command without a stale sweep does not need these.
    from dml_core.trials.store import open_store
    from tasks.sweep.node_data import open_ledger
    from tasks.sweep.progress import show_progress
    from tasks.sweep.run import run_sweep
    from tasks.tracking.sync import SweepRecorder

    context = load_context(request)
    check_own_code(context.study)
    pipeline, folder = context.project.pipeline, context.working_folder
    with clear_machine_faults(context.trials_folder.parent):
        folder.mkdir(parents=True, exist_ok=True)
        for data in context.datasets:
            ensure_whole(data)
        ledger = open_ledger(folder, pipeline.ray, store=open_store(context.store_location))
        with SweepRecorder(pipeline.mlflow, store=ledger.store, key_of=ledger.key) as recorder:
            with (
                show_progress(show) as update,
                logged_run(folder, study=request.folder_name) as log,
            ):
                events = TrialLog(log)
                result = run_sweep(
                    context.study,
                    pipeline,
                    folder=folder,
                    output=context.sweep_folder,
                    store=ledger.store,
                    # A second command for the same study must not touch the record of the first.
                    on_begin=lambda: recorder.start(context.study),
                    on_update=update,
                    on_trial_start=recorder.on_trial_start,
                    on_epoch=in_turn(recorder.on_epoch, events.on_epoch),
                    on_trial_end=in_turn(recorder.on_trial_end, events.on_trial_end),
                    seconds=seconds,
                )
            recorder.finish(result.winners)
    return context.sweep_folder
