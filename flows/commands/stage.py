"""dml stage: one stage as its DVC command runs it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from flows.environment import use_quiet_prefect
from tasks.context import StudyRequest

STAGES = ("prepare", "sweep", "evaluate", "report")


def run_stage(stage: str, study: str | None, params: Path, assignments: list[str]) -> None:
    """Runs one stage's flow, whether it is stale or not."""
    if stage not in STAGES:
        raise ValueError(f"a stage must be one of {', '.join(STAGES)}. Got {stage!r}.")
    if study is None and stage != "prepare":
        raise ValueError(f"stage {stage} needs the name of a study, as in: dml stage {stage} main")
    request = StudyRequest(study=study or "main", params=str(params), overrides=tuple(assignments))
    wait_for_server = use_quiet_prefect()
    flow = _import_flow(stage)
    wait_for_server()
    flow(request)


def _import_flow(stage: str) -> Callable[[StudyRequest], Any]:
    if stage == "prepare":
        from flows.prepare import prepare

        return prepare
    if stage == "sweep":
        from flows.sweep import sweep

        return sweep
    if stage == "evaluate":
        from flows.evaluate import evaluate

        return evaluate
    from flows.report import report

    return report
