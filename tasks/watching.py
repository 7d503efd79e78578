"""Holds a study's newest result against the accepted one, and keeps its history."""

from datetime import UTC, datetime
from pathlib import Path

from prefect import task
from pydantic import BaseModel, ConfigDict

from dml_core.history.change import Change, measure_change
from dml_core.history.record import (
    Result,
    find_accepted,
    history_file,
    note_result,
    read_history,
)
from dml_core.studies.answer_metric import answer_metric
from dml_core.studies.code_version import hash_training_code
from dml_core.studies.metric_names import is_higher_better
from dml_core.studies.observations import load_observations
from dml_core.studies.scores_file import read_scores
from tasks.artifacts import publish
from tasks.change_text import describe_change
from tasks.context import StudyContext, StudyRequest, load_context
from tasks.evaluating import best_winner
from tasks.report_page.facts import describe_commit
from tasks.retrying import is_momentary


class ScoreDrop(ValueError):
    """A result is significantly worse than the accepted one; the message says what to do."""


class Watched(BaseModel):
    """What the comparison with the accepted result says."""

    model_config = ConfigDict(frozen=True)

    study: str
    verdict: str
    """first, gain, drop or no change."""
    headline: str
    """In a sentence, with what to do."""
    has_dropped: bool
    """Whether the verdict is a drop that nobody accepted."""
    markdown: str
    """The comparison of each arm."""


@task(retries=2, retry_delay_seconds=[2, 10], retry_condition_fn=is_momentary, timeout_seconds=900)
def watch_result(request: StudyRequest, *, promote: bool = False) -> Watched:
    """Notes the newest result in the study's history and shows how it compares; twice is safe.

    Args:
        request: the study.
        promote: accept the result whatever it is, and move the alias in MLflow to its model.
    """
    watched = watch(load_context(request), promote=promote)
    publish(f"watch-{request.folder_name}", watched.headline, watched.markdown)
    return watched


def watch(context: StudyContext, *, promote: bool) -> Watched:
    """Does the work of `watch_result`, without Prefect."""
    file = history_file(
        Path(context.project.pipeline.sweep.results_root), context.request.folder_name
    )
    result, winner = _read_result(context)
    accepted = find_accepted(read_history(file), result)
    change = _compare(accepted, result) if accepted else None
    verdict = change.verdict if change else "first"
    moves = promote or (verdict == "gain" and context.project.pipeline.mlflow.promote)
    if moves:
        _promote(context, winner)
    noted = {"verdict": verdict, "accepted": moves or accepted is None}
    note_result(file, result.model_copy(update=noted))
    headline, markdown = describe_change(
        context.request, result, accepted, change, is_promoted=moves
    )
    return Watched(
        study=context.request.folder_name,
        verdict=verdict,
        headline=headline,
        has_dropped=verdict == "drop" and not moves,
        markdown=markdown,
    )


def check_for_drops(watched: list[Watched]) -> None:
    """Raises ScoreDrop where a result dropped and nobody accepted it."""
    if drops := [each.headline for each in watched if each.has_dropped]:
        raise ScoreDrop("\n".join(drops))


def _read_result(context: StudyContext) -> tuple[Result, Path]:
    """Returns what a study's evaluation says now, and the folder of the model to ship."""
    scores = read_scores(context.evaluate_folder)
    metric = answer_metric(context.study)
    winner = best_winner(context, scores)
    result = Result(
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=describe_commit(Path()),
        data_hash=scores.data_hash,
        digest=scores.digest,
        code=hash_training_code(),
        metric=metric,
        higher_is_better=is_higher_better(metric),
        champion=winner.name.rpartition("-seed")[0],
        scores=load_observations(context.sweep_folder, context.evaluate_folder).scalars(metric),
    )
    return result, winner


def _compare(accepted: Result, result: Result) -> Change:
    return measure_change(
        accepted.scores,
        result.scores,
        accepted_champion=accepted.champion,
        champion=result.champion,
        higher_is_better=result.higher_is_better,
    )


def _promote(context: StudyContext, winner: Path) -> None:
    from tasks.adapters.mlflow_address import open_tracking
    from tasks.adapters.mlflow_model import promote_winner

    config = context.project.pipeline.mlflow
    promote_winner(
        open_tracking(config, project=Path()),
        config,
        study=context.request.folder_name,
        checkpoint=winner / "checkpoint.pt",
    )
