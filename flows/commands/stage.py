"""dml stage: one stage as its DVC command runs it."""

from pathlib import Path

from flows.environment import use_quiet_prefect
from tasks.context import StudyRequest

STAGES = ("prepare", "sweep", "evaluate", "report")


def run_stage(stage: str, study: str | None, params: Path, assignments: list[str]) -> None:
    """Runs one stage's flow, whether it is stale or not."""
    if stage not in STAGES:
        raise ValueError(f"a stage must be one of {', '.join(STAGES)}. Got {stage!r}.")
    use_quiet_prefect()
    if study is None and stage != "prepare":
        raise ValueError(f"stage {stage} needs the name of a study, as in: dml stage {stage} main")
    request = StudyRequest(study=study or "main", params=str(params), overrides=tuple(assignments))
    _run_study_stage(stage, request)


def _run_study_stage(stage: str, request: StudyRequest) -> None:
    if stage == "prepare":
        from flows.prepare import prepare

        prepare(request)
    elif stage == "sweep":
        from flows.sweep import sweep

        sweep(request)
    elif stage == "evaluate":
        from flows.evaluate import evaluate

        evaluate(request)
    else:
        from flows.report import report

        report(request)
