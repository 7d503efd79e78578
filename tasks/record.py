"""Records a study's evaluation in MLflow and registers its best model."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefect import get_run_logger, task

from dml_core.measures.results import read_scores
from tasks.evaluate import GRID_FILE, best_winner
from tasks.study import StudyContext, StudyRequest, load_context

if TYPE_CHECKING:
    from tasks.tracking.address import Tracking
    from tasks.tracking.identity import SweepFacts


def may_pass(task: Any, run: Any, state: Any) -> bool:
    """Returns whether another try may help: not where a sqlite file cannot be used."""
    from tasks.tracking.address import DamagedDatabase

    return not isinstance(state.data, DamagedDatabase)


@task(retries=3, retry_delay_seconds=[5, 20, 60], retry_condition_fn=may_pass, timeout_seconds=900)
def record_evaluation(request: StudyRequest) -> str:
    """Logs test scores, the retrieval picture and the best model; returns the compare page.

    Runs of the sweep that MLflow lacks, since it was away or its record was deleted, are sent
    first from the trials' files. Running it twice is safe; a retry helps against a tracking server
    that is away for a moment.
    """
    from tasks.tracking.address import open_tracking
    from tasks.tracking.evaluation import EvaluationFiles, log_evaluation
    from tasks.tracking.identity import read_sweep_facts
    from tasks.tracking.model import register_winner

    context = load_context(request)
    scores = read_scores(context.evaluate_folder)
    tracking = open_tracking(context.project.pipeline.mlflow, project=Path())
    facts = read_sweep_facts(context.study, project=Path())
    _bring_up_to_date(context, tracking, facts)
    winner = best_winner(context, scores)
    arm = winner.name.rpartition("-seed")[0]
    record = log_evaluation(
        tracking,
        context.study,
        facts,
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


@task(retries=3, retry_delay_seconds=[5, 20, 60], retry_condition_fn=may_pass, timeout_seconds=900)
def record_report(request: StudyRequest) -> None:
    """Adds the answer and the figures to the study's run; running it twice is safe."""
    from tasks.tracking.address import open_tracking
    from tasks.tracking.evaluation import has_evaluation, log_report
    from tasks.tracking.identity import read_sweep_facts

    context = load_context(request)
    tracking = open_tracking(context.project.pipeline.mlflow, project=Path())
    facts = read_sweep_facts(context.study, project=Path())
    arms = read_scores(context.evaluate_folder).scores
    if not has_evaluation(tracking, context.study, facts, arms=arms):
        # Deleted or replaced while the report was drawn.
        record_evaluation.fn(request)
    log_report(
        tracking,
        context.study,
        facts,
        answer=context.report_folder / "answer.json",
        figures=sorted(
            path
            for path in (context.report_folder / "figures").iterdir()
            if path.suffix in (".png", ".svg")
        ),
    )


def _bring_up_to_date(context: StudyContext, tracking: "Tracking", facts: "SweepFacts") -> None:
    """Sends what MLflow lacks of the sweep."""
    from dml_core.trials.table import read_trials
    from tasks.tracking.sync import SweepSync

    SweepSync(tracking, context.study, facts).sync_finished(
        read_trials(context.sweep_folder / "trials.parquet"),
        folder=context.working_folder,
        winners=(context.sweep_folder / "winners.json").read_text(encoding="utf-8"),
    )
