"""All stages of one or several studies, in order."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.runtime import deployment

from flows.evaluate import evaluate
from flows.prepare import prepare
from flows.report import report
from flows.sweep import sweep
from tasks.adapters.ray_cluster import kept_cluster
from tasks.artifacts import show_run
from tasks.context import StudyRequest, load_context
from tasks.notifying import tell_failure
from tasks.redaction import redact_logs
from tasks.report_page.facts import describe_commit
from tasks.reporting import Answer, read_answer
from tasks.run_log import RunLog, logged_run
from tasks.stages import hold_stage, track_study
from tasks.versioning import commit_stage, is_stale
from tasks.watching import check_for_drops, watch_result


# No time-out here or on a stage: a study takes minutes or days. sweep.timeout_seconds limits the
# sweep, which stops so that it can go on later.
@flow(name="ablation", on_failure=[tell_failure], on_crashed=[tell_failure])
def ablation(
    studies: list[str],
    profile: str | None = None,
    params: str = "params.yaml",
    overrides: list[str] | None = None,
    show: str = "auto",
    force: bool = False,
    promote: bool = False,
) -> list[Answer]:
    """Answers each study: prepare, sweep, evaluate, report; what is up to date is left alone.

    A scheduled run fails where a result is significantly worse than the accepted one.
    """
    redact_logs()
    requests = [
        StudyRequest(study=name, profile=profile, params=params, overrides=tuple(overrides or ()))
        for name in studies
    ]
    for request in requests:
        load_context(request)  # every problem of every study is found before any of them starts
    for request in requests:
        track_study(request)
    with kept_cluster() if len(requests) > 1 else nullcontext():
        ran = [_run_logged(request, show=show, force=force) for request in requests]
    answers = [read_answer(load_context(request)) for request in requests]
    if answers:
        show_run(requests, answers, ran)
    watched = [watch_result(request, promote=promote) for request in requests]
    if deployment.id is not None:
        check_for_drops(watched)
    return [
        answer.model_copy(update={"watch": each.headline, "has_dropped": each.has_dropped})
        for answer, each in zip(answers, watched, strict=True)
    ]


def _run_logged(request: StudyRequest, *, show: str, force: bool) -> list[str]:
    context = load_context(request)
    with logged_run(context.working_folder, study=request.folder_name) as log:
        log.write("run started", commit=describe_commit(Path()), profile=request.profile)
        ran = _run_stale_stages(request, log, show=show, force=force)
        log.write("run ended", stages=ran)
    return ran


def _run_stale_stages(request: StudyRequest, log: RunLog, *, show: str, force: bool) -> list[str]:
    """Runs the stages of a study that are stale, in order, and returns their names."""
    stages: dict[str, Callable[[], Any]] = {
        "prepare": lambda: prepare(request),
        "sweep": lambda: sweep(request, show),
        "evaluate": lambda: evaluate(request),
        "report": lambda: report(request),
    }
    return [
        stage
        for stage, run in stages.items()
        if _run_if_stale(stage, run, request, log, is_forced=force)
    ]


def _run_if_stale(
    stage: str, run: Callable[[], Any], request: StudyRequest, log: RunLog, *, is_forced: bool
) -> bool:
    with hold_stage(stage, request):
        must_run = is_forced or is_stale(stage, request)
        if must_run:
            started = time.perf_counter()
            log.write("stage started", stage=stage)
            run()
            commit_stage(stage, request)
            log.write("stage ended", stage=stage, seconds=time.perf_counter() - started)
        return must_run
