"""The stages of a study as DVC knows them: which are stale, and how to say that one is done.

Knows no Prefect, so that a command may ask without starting it.
"""

import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dml_core.data.atomic_folder import folder_lock
from dml_core.studies.loading import is_file_itself
from tasks.adapters.dvc_repo import commit_stage, has_repo, stale_stages
from tasks.adapters.dvc_waiting import wait_while_locked
from tasks.context import StudyRequest

PROJECT = Path()
TRACKED_FILE = Path("studies") / "tracked.json"
"""The list of studies that dvc.yaml makes stages of."""
STAGES = ("prepare", "sweep", "evaluate", "report")
LOCK_TIMEOUT_SECONDS = 3600.0
"""How long to wait for DVC's lock: longer than the commit of a large dataset takes."""

OnWait = Callable[[str], None]


def is_versioned(request: StudyRequest) -> bool:
    """Tells whether DVC knows this run: the study as its files say it, nothing changed by hand."""
    return is_file_itself(request.profile) and not request.overrides and has_repo(PROJECT)


def stage_name(stage: str, request: StudyRequest) -> str:
    """Returns the stage's name in dvc.yaml."""
    return stage if stage == "prepare" else f"{stage}@{request.study}"


def list_tracked(folder: Path = PROJECT) -> list[str]:
    """Returns the studies that have stages in dvc.yaml."""
    content = json.loads((folder / TRACKED_FILE).read_text(encoding="utf-8"))
    return [str(name) for name in content["studies"]]


def track_study(request: StudyRequest) -> None:
    """Gives a study its stages in dvc.yaml, where DVC should know of the run; twice is safe."""
    if not is_versioned(request):
        return
    with folder_lock(PROJECT / ".dml" / "tracked"):
        tracked = list_tracked()
        if request.study in tracked:
            return
        text = json.dumps({"studies": [*tracked, request.study]}, indent=2) + "\n"
        partial = (PROJECT / TRACKED_FILE).with_suffix(".partial")
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, PROJECT / TRACKED_FILE)


def is_stage_stale(
    stage: str,
    request: StudyRequest,
    *,
    on_wait: OnWait,
    timeout_seconds: float = LOCK_TIMEOUT_SECONDS,
) -> bool:
    """Tells whether a stage must run; a run that DVC does not know always must."""
    if not is_versioned(request):
        return True
    name = stage_name(stage, request)
    stale = wait_while_locked(
        lambda: stale_stages(PROJECT, [name]), timeout_seconds=timeout_seconds, on_wait=on_wait
    )
    return name in stale


def find_stale_stages(request: StudyRequest) -> list[str]:
    """Returns the stages that are stale now or may turn out to be when those before them ran."""
    names = [stage_name(stage, request) for stage in STAGES]
    if not is_versioned(request) or request.study not in list_tracked():
        return names
    return wait_while_locked(
        lambda: stale_stages(PROJECT, [names[-1]], with_downstream=True),
        timeout_seconds=LOCK_TIMEOUT_SECONDS,
        on_wait=logging.getLogger(__name__).warning,
    )


def record_stage(
    stage: str,
    request: StudyRequest,
    *,
    on_wait: OnWait,
    timeout_seconds: float = LOCK_TIMEOUT_SECONDS,
) -> None:
    """Writes to dvc.lock that a stage is done; nothing for a run that DVC does not know."""
    if is_versioned(request):
        name = stage_name(stage, request)
        wait_while_locked(
            lambda: commit_stage(PROJECT, name), timeout_seconds=timeout_seconds, on_wait=on_wait
        )


@contextmanager
def hold_stage(stage: str, request: StudyRequest) -> Iterator[None]:
    """Keeps the stage that studies share to one run at a time, from the question to the commit.

    A second run waits, and then finds the stage done. Otherwise its commit would replace the
    data's files by equal ones while trials of the first run open them. The other stages are a
    study's own, and a second sweep of the same study is refused.
    """
    if stage == "prepare" and is_versioned(request):
        with folder_lock(PROJECT / ".dml" / stage):
            yield
    else:
        yield
