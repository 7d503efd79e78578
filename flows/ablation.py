"""All stages of one or several studies, in order."""

from collections.abc import Callable
from typing import Any

from prefect import flow

from flows.evaluate import evaluate
from flows.prepare import prepare
from flows.report import report
from flows.sweep import sweep
from tasks.context import StudyRequest, load_context
from tasks.reporting import Answer, read_answer
from tasks.versioning import commit_stage, is_stale


@flow(name="ablation")
def ablation(
    studies: list[str],
    profile: str | None = None,
    params: str = "params.yaml",
    overrides: list[str] | None = None,
    show: str = "auto",
    force: bool = False,
) -> list[Answer]:
    """Answers each study: prepare, sweep, evaluate, report; what is up to date is left alone."""
    requests = [
        StudyRequest(study=name, profile=profile, params=params, overrides=tuple(overrides or ()))
        for name in studies
    ]
    for request in requests:
        load_context(request)  # every problem of every study is found before any of them starts
    return [_answer(request, show=show, force=force) for request in requests]


def _answer(request: StudyRequest, *, show: str, force: bool) -> Answer:
    stages: dict[str, Callable[[], Any]] = {
        "prepare": lambda: prepare(request),
        "sweep": lambda: sweep(request, show),
        "evaluate": lambda: evaluate(request),
        "report": lambda: report(request),
    }
    for stage, run in stages.items():
        if force or is_stale(stage, request):
            run()
            commit_stage(stage, request)
    return read_answer(load_context(request))
