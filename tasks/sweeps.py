"""Searches and repeats a study's arms on a Ray cluster, recorded in MLflow."""

from pathlib import Path

from prefect import task

from tasks.context import StudyRequest, load_context


@task
def sweep_study(request: StudyRequest, show: str = "auto") -> Path:
    """Writes trials.parquet and the winners; a killed sweep goes on where it stopped.

    Args:
        request: the study.
        show: how progress is shown: auto (a live table in a terminal), json, or none.
    """
    from tasks.adapters.mlflow_recorder import SweepRecorder
    from tasks.adapters.ray_sweep import run_sweep
    from tasks.live_table import show_progress

    context = load_context(request)
    context.working_folder.mkdir(parents=True, exist_ok=True)
    recorder = SweepRecorder(context.project.pipeline.mlflow, folder=context.working_folder)
    recorder.start(context.study)
    try:
        with show_progress(show) as update:
            result = run_sweep(
                context.study,
                context.project.pipeline,
                folder=context.working_folder,
                output=context.sweep_folder,
                on_update=update,
                on_trial_start=recorder.on_trial_start,
                on_epoch=recorder.on_epoch,
                on_trial_end=recorder.on_trial_end,
            )
        recorder.finish(result.winners)
    finally:
        recorder.close()
    return context.sweep_folder
