"""dml stage: one stage as its DVC command runs it."""

import logging
from pathlib import Path

from flows.servers.connect import set_up_prefect
from tasks.study import StudyRequest
from tasks.versioning.stages import (
    begin_stage,
    check_origin,
    is_versioned,
    list_tracked,
    pin_run,
    track_study,
)

LOGGER = logging.getLogger(__name__)

STAGES = ("prepare", "sweep", "evaluate", "report")


def run_stage(stage: str, study: str | None, params: Path, assignments: list[str]) -> None:
    """Runs one stage's flow, whether it is stale or not."""
    if stage not in STAGES:
        raise ValueError(f"a stage must be one of {', '.join(STAGES)}. Got {stage!r}.")
    if study is None and stage != "prepare":
        raise ValueError(f"stage {stage} needs the name of a study, as in: dml stage {stage} main")
    request = StudyRequest(study=study or "main", params=str(params), overrides=tuple(assignments))
    # A study without stages has no place in dvc.lock.
    known = stage == "prepare" or not is_versioned(request) or request.study in list_tracked()
    if known and stage != "prepare":
        # DVC finds out at the next call where the study has other images now.
        track_study(request)
    run = pin_run(request, [stage] if known else [])
    wait_for_server = set_up_prefect()
    from flows.ablation import STAGES as FLOWS

    wait_for_server()
    origin = begin_stage(stage, run, on_wait=LOGGER.warning) if known else None
    FLOWS[stage](run.request)
    check_origin(stage, run.request, origin)
