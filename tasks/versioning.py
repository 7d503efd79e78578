"""Asks DVC whether a stage is stale, and tells it when one is done."""

from pathlib import Path

from tasks.adapters.dvc_repo import commit_stage as commit_to_dvc
from tasks.adapters.dvc_repo import has_repo, stale_stages
from tasks.context import StudyRequest

PROJECT = Path()


def is_versioned(request: StudyRequest) -> bool:
    """Tells whether DVC knows this run: the study as its files say it, nothing changed by hand."""
    return not request.profile and not request.overrides and has_repo(PROJECT)


def stage_name(stage: str, request: StudyRequest) -> str:
    """Returns the stage's name in dvc.yaml."""
    return stage if stage == "prepare" else f"{stage}@{request.study}"


def is_stale(stage: str, request: StudyRequest) -> bool:
    """Tells whether a stage must run; a run that DVC does not know always must.

    Ask anew for each stage when its turn comes: whether it is stale shows only after those before
    it have run.
    """
    if not is_versioned(request):
        return True
    name = stage_name(stage, request)
    return name in stale_stages(PROJECT, [name])


def find_stale_stages(request: StudyRequest) -> list[str]:
    """Returns the stages that are stale now or may turn out to be when those before them ran."""
    names = [stage_name(s, request) for s in ("prepare", "sweep", "evaluate", "report")]
    if not is_versioned(request):
        return names
    return stale_stages(PROJECT, [names[-1]], with_downstream=True)


def commit_stage(stage: str, request: StudyRequest) -> None:
    """Writes to dvc.lock that a stage is done; nothing for a run that DVC does not know."""
    if is_versioned(request):
        commit_to_dvc(PROJECT, stage_name(stage, request))
