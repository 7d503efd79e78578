"""Compares a study's newest result with the accepted one, and reports failed scheduled runs."""

import logging
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from prefect import task
from pydantic import BaseModel, ConfigDict

from dml_core.analysis.history import (
    Change,
    Difference,
    Result,
    find_accepted,
    history_file,
    measure_change,
    note_result,
    read_history,
)
from dml_core.analysis.observations import answer_metric, load_observations
from dml_core.analysis.scored_study import find_shipped
from dml_core.config.loading import load_project_config
from dml_core.measures.results import read_scores
from dml_core.studies.metrics import Unit, is_higher_better, unit_of
from dml_core.trials.key import hash_training_code
from tasks.artifacts import publish, render_table
from tasks.machine_faults import is_momentary
from tasks.report_page.tables import describe_commit
from tasks.secrets import redact
from tasks.study import StudyContext, StudyRequest, load_context

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun, State
    from prefect.flows import Flow


def describe_change(
    request: StudyRequest,
    result: Result,
    accepted: Result | None,
    change: Change | None,
    *,
    is_promoted: bool,
) -> tuple[str, str]:
    """Returns a sentence with what to do, and the comparison as Markdown.

    Args:
        request: the study.
        result: the new result.
        accepted: the accepted result; None where this is the first on its data.
        change: the comparison; None for the first.
        is_promoted: whether the new result has just been accepted.
    """
    name = request.folder_name
    if accepted is None or change is None:
        text = f"{name}: the first result on data {result.data_hash[:12]}; it is accepted."
        return text, _list_sources(result, None)
    unit = unit_of(result.metric)
    size = _show(change.champion, unit)
    headline = {
        "drop": f"{name} dropped: the champion changed by {size}{_name_worse(change)}.",
        "gain": f"{name} gained: the champion changed by {size}.",
        "no change": f"{name}: no significant change of the champion ({size}).",
    }[change.verdict]
    headline += _advise(change.verdict, request, is_promoted=is_promoted)
    return headline, f"{_list_arms(result, accepted, change)}\n{_list_sources(result, accepted)}"


def _name_worse(change: Change) -> str:
    listed = ", ".join(change.worse_arms)
    return f", and these arms dropped: {listed}" if listed else ""


def _advise(verdict: str, request: StudyRequest, *, is_promoted: bool) -> str:
    if is_promoted:
        return " It is accepted, and the alias in MLflow moved to its model."
    if verdict == "no change":
        return ""
    profile = f" --profile {request.profile}" if request.profile else ""
    command = f"dml run {request.study}{profile} --promote"
    if verdict == "gain":
        return f" Make it the champion with: {command}"
    return f" Find the cause (dml history {request.study}), or accept it with: {command}"


def _show(difference: Difference, unit: Unit) -> str:
    if difference.mean is None:
        return "nothing, since no seed is in both results"
    shown = f"{unit.show_difference(difference.mean)}{unit.difference_name}"
    if difference.interval is None:
        return f"{shown} of one seed, which has no interval"
    low, high = (unit.show_difference(end) for end in difference.interval)
    return f"{shown} ({low} to {high}, {difference.num_pairs} seeds)"


def _list_arms(result: Result, accepted: Result, change: Change) -> str:
    unit = unit_of(result.metric)
    rows = [
        [
            f"{arm} (champion)" if arm == result.champion else arm,
            _mean(accepted, arm, unit),
            _mean(result, arm, unit),
            _show(difference, unit),
            "dropped" if arm in change.worse_arms else "",
        ]
        for arm, difference in change.arms.items()
    ]
    columns = ["arm", f"accepted, {result.metric}", "now", "change for the better", ""]
    return render_table(columns, rows)


def _mean(result: Result, arm: str, unit: Unit) -> str:
    return f"{unit.show(fmean(result.scores[arm].values()))}{unit.name}"


def _list_sources(result: Result, accepted: Result | None) -> str:
    both = {"accepted": accepted, "now": result}
    rows = [
        [name, each.time, each.commit, each.data_hash[:12], each.digest[:12], each.champion]
        for name, each in both.items()
        if each is not None
    ]
    return render_table(["result", "time", "commit", "data", "study", "champion"], rows)


class ScoreDrop(ValueError):
    """A result is significantly worse than the accepted one; the message has a remedy."""


class Watched(BaseModel):
    """The comparison of a result with the accepted one."""

    model_config = ConfigDict(frozen=True)

    study: str
    verdict: str
    """first, gain, drop or no change."""
    headline: str
    """A sentence with the verdict and what to do."""
    has_dropped: bool
    """Whether the verdict is a drop that was not accepted."""
    markdown: str
    """The comparison of each arm."""


@task(retries=2, retry_delay_seconds=[2, 10], retry_condition_fn=is_momentary, timeout_seconds=900)
def watch_result(request: StudyRequest, *, promote: bool = False) -> Watched:
    """Adds the newest result to the study's history and shows the comparison; twice is safe.

    Args:
        request: the study.
        promote: accept any result, and move the alias in MLflow to its model.
    """
    watched = watch(load_context(request), promote=promote)
    publish(f"watch-{request.folder_name}", watched.headline, watched.markdown)
    return watched


def watch(context: StudyContext, *, promote: bool) -> Watched:
    """Does the work of `watch_result` without Prefect."""
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
    """Raises ScoreDrop where a result dropped and was not accepted."""
    if drops := [each.headline for each in watched if each.has_dropped]:
        raise ScoreDrop("\n".join(drops))


def _read_result(context: StudyContext) -> tuple[Result, Path]:
    """Returns the result of a study's evaluation, and the folder of the model to ship."""
    scores = read_scores(context.evaluate_folder)
    metric = answer_metric(context.study)
    winner = find_shipped(
        context.study, sweep_folder=context.sweep_folder, evaluate_folder=context.evaluate_folder
    )
    result = Result(
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=describe_commit(Path()),
        data_hash=scores.data_hash,
        digest=scores.digest,
        code=hash_training_code(),
        metric=metric,
        higher_is_better=is_higher_better(metric),
        champion=winner.arm,
        scores=load_observations(context.sweep_folder, context.evaluate_folder).scalars(metric),
    )
    return result, winner.path


def _compare(accepted: Result, result: Result) -> Change:
    return measure_change(
        accepted.scores,
        result.scores,
        accepted_champion=accepted.champion,
        champion=result.champion,
        higher_is_better=result.higher_is_better,
    )


def _promote(context: StudyContext, winner: Path) -> None:
    from tasks.tracking.address import open_tracking
    from tasks.tracking.model import promote_winner

    config = context.project.pipeline.mlflow
    promote_winner(
        open_tracking(config, project=Path()),
        config,
        study=context.request.folder_name,
        checkpoint=winner / "checkpoint.pt",
    )


_MOST_LETTERS = 2000


def notify_of_failure(flow: "Flow[..., Any]", flow_run: "FlowRun", state: "State[Any]") -> None:
    """Sends a message when a scheduled run failed or crashed and notify.block names a block.

    Prefect calls this when such a run ends. A message that cannot be sent is logged: another error
    must not hide why the run failed. Prefect's automations are not used: they live on the server
    beside params.yaml, and their messages cannot be redacted.
    """
    if flow_run.deployment_id is None:
        return
    parameters = flow_run.parameters
    try:
        params = Path(str(parameters.get("params", "params.yaml")))
        block = load_project_config(params, parameters.get("overrides") or []).pipeline.notify.block
        if block:
            send(block, *make_message(parameters, flow_run.name, state))
    except Exception as error:
        logging.getLogger(__name__).warning("no message about the failure was sent: %s", error)


def make_message(parameters: dict[str, Any], run_name: str, state: "State[Any]") -> tuple[str, str]:
    """Returns the subject and the text of a message, without secrets."""
    studies = ", ".join(map(str, parameters.get("studies", [])))
    subject = f"dml: the scheduled run of {studies} {(state.name or 'failed').lower()}"
    reason = redact(state.message or "no reason was given")[:_MOST_LETTERS]
    return subject, f"{subject}\nrun: {run_name}\n{reason}"


def send(name: str, subject: str, text: str) -> None:
    """Sends a message through a saved block: one of Prefect's notification blocks, or a webhook.

    Args:
        name: type and name of the block, such as webhook/team.
        subject: for blocks that have one, such as e-mail.
        text: the message.

    Raises:
        ValueError: where there is no such block, or it cannot send.
    """
    from prefect.blocks.core import Block
    from prefect.utilities.asyncutils import run_coro_as_sync

    block: Any = Block.load(name)
    if hasattr(block, "notify"):
        block.notify(text, subject)
    elif hasattr(block, "call"):
        # A plain webhook posts its payload; chats show `text`.
        answer = run_coro_as_sync(block.call({"subject": subject, "text": text}))
        answer.raise_for_status()
    else:
        raise ValueError(
            f"notify.block={name} is a {type(block).__name__}, which cannot send. Name a webhook "
            "or one of Prefect's notification blocks."
        )
