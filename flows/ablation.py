"""All stages of one or several studies, in order."""

import importlib
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

from prefect import flow, get_run_logger
from prefect.runtime import deployment

from flows.environment import outlive_server
from flows.evaluate import evaluate
from flows.prepare import prepare
from flows.report import report
from flows.servers.living_runs import note_run
from flows.sweep import sweep
from tasks.artifacts import show_run
from tasks.notify import tell_failure
from tasks.redaction import redact_logs
from tasks.report import Answer, read_answer
from tasks.report_page.facts import describe_commit
from tasks.run_log import RunLog, logged_run
from tasks.sources import is_pinned, pin_sources
from tasks.study import StudyRequest, load_context
from tasks.sweep.cluster import kept_cluster
from tasks.sweep.lock import check_is_free
from tasks.versioning.stages import PinnedRun, begin_stage, hold_stage, pin_run, track_study
from tasks.versioning.tasks import commit_stage, is_stale
from tasks.watch import check_for_drops, watch_result


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
    if deployment.id is not None and not is_pinned():
        # Prefect loaded this file from the project's folder, which may change while the run works.
        pin_sources()
        pinned = importlib.import_module("flows.ablation").ablation
        return cast(
            "list[Answer]",
            pinned.fn(studies, profile, params, overrides, show, force, promote),
        )
    redact_logs()
    if deployment.id is not None:
        # A run of the worker; commands have done so before.
        note_run(Path(), f"scheduled run of {', '.join(studies)}")
        outlive_server()
    requests = [
        StudyRequest(study=name, profile=profile, params=params, overrides=tuple(overrides or ()))
        for name in studies
    ]
    for request in requests:
        # Every problem of every study is found before any of them starts.
        check_is_free(load_context(request).working_folder)
    for request in requests:
        track_study(request)
    runs = [pin_run(request) for request in requests]
    requests = [run.request for run in runs]
    with kept_cluster() if len(runs) > 1 else nullcontext():
        ran = [_run_logged(run, show=show, force=force) for run in runs]
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


def _run_logged(run: PinnedRun, *, show: str, force: bool) -> list[str]:
    request = run.request
    context = load_context(request)
    with logged_run(context.working_folder, study=request.folder_name) as log:
        log.write("run started", commit=describe_commit(Path()), profile=request.profile)
        ran = _run_stale_stages(run, log, show=show, force=force)
        log.write("run ended", stages=ran)
    return ran


def _run_stale_stages(run: PinnedRun, log: RunLog, *, show: str, force: bool) -> list[str]:
    """Runs the stages of a study that are stale, in order, and returns their names."""
    request = run.request
    stages: dict[str, Callable[[], Any]] = {
        "prepare": lambda: prepare(request),
        "sweep": lambda: sweep(request, show),
        "evaluate": lambda: evaluate(request),
        "report": lambda: report(request),
    }
    return [
        stage
        for stage, work in stages.items()
        if _run_if_stale(stage, work, run, log, is_forced=force)
    ]


def _run_if_stale(
    stage: str, work: Callable[[], Any], run: PinnedRun, log: RunLog, *, is_forced: bool
) -> bool:
    if not (is_forced or is_stale(stage, run)):
        return False
    on_wait = get_run_logger().warning
    with hold_stage(stage, run.request, on_wait=on_wait) as had_to_wait:
        # Another run may have done it meanwhile.
        if had_to_wait and not is_forced and not is_stale(stage, run):
            return False
        started = time.perf_counter()
        log.write("stage started", stage=stage)
        origin = begin_stage(stage, run, on_wait=on_wait)
        work()
        changed = commit_stage(stage, run, origin)
        seconds = time.perf_counter() - started
        log.write("stage ended", stage=stage, seconds=seconds, changed_meanwhile=changed or None)
    return True
