"""Records a study's evaluation in MLflow and registers its best model."""

from pathlib import Path

from prefect import get_run_logger, task

from dml_core.studies.scores_file import read_scores
from tasks.context import StudyRequest, load_context
from tasks.evaluating import GRID_FILE, best_winner


@task(retries=3, retry_delay_seconds=[5, 20, 60], timeout_seconds=900)
def record_evaluation(request: StudyRequest) -> str:
    """Logs test scores, the retrieval picture and the best model; returns the compare page.

    Running it twice is safe; a retry helps against a tracking server that is away for a moment.
    """
    from tasks.adapters.mlflow_address import open_tracking
    from tasks.adapters.mlflow_evaluation import EvaluationFiles, log_evaluation
    from tasks.adapters.mlflow_identity import read_sweep_facts
    from tasks.adapters.mlflow_model import register_winner

    context = load_context(request)
    scores = read_scores(context.evaluate_folder)
    tracking = open_tracking(context.project.pipeline.mlflow, project=Path())
    winner = best_winner(context, scores)
    arm = winner.name.rpartition("-seed")[0]
    record = log_evaluation(
        tracking,
        context.study,
        read_sweep_facts(context.study, project=Path()),
        scores=scores.scores,
        files=EvaluationFiles(
            winners=winner.parent,
            retrieval_grids={arm: context.evaluate_folder / GRID_FILE},
        ),
    )
    model = register_winner(
        tracking,
        context.project.pipeline.mlflow,
        # A smaller size of a study is another model: it must not take the place of the real one.
        study=request.folder_name,
        run_id=record.arm_run_ids[arm],
        checkpoint=winner / "checkpoint.pt",
    )
    get_run_logger().info("registered %s", model.uri)
    return record.comparison.describe()


@task(retries=3, retry_delay_seconds=[5, 20, 60], timeout_seconds=900)
def record_report(request: StudyRequest) -> None:
    """Adds the answer and the figures to the study's run; running it twice is safe."""
    from tasks.adapters.mlflow_address import open_tracking
    from tasks.adapters.mlflow_evaluation import log_report
    from tasks.adapters.mlflow_identity import read_sweep_facts

    context = load_context(request)
    log_report(
        open_tracking(context.project.pipeline.mlflow, project=Path()),
        context.study,
        read_sweep_facts(context.study, project=Path()),
        answer=context.report_folder / "answer.json",
        figures=sorted(
            path
            for path in (context.report_folder / "figures").iterdir()
            if path.suffix in (".png", ".svg")
        ),
    )
