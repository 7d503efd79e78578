"""The stages of a study as DVC knows them: which are stale, and how to say that one is done.

Knows no Prefect, so that a command may ask without starting it.
"""

import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dml_core.config.data import DownloadedData
from dml_core.config.problems import ConfigError
from dml_core.data.atomic_folder import folder_lock
from dml_core.studies.definition import NAME_PATTERN
from dml_core.studies.loading import is_file_itself
from tasks.study import STUDIES_FOLDER, StudyRequest, load_context, pin_files
from tasks.versioning.repo import (
    StageChanged,
    StageOrigin,
    commit_stage,
    differs_from_lock,
    has_repo,
    held_stage,
    list_changes,
    read_origins,
    stale_stages,
)
from tasks.versioning.session import wait_while_locked

LOGGER = logging.getLogger(__name__)
PROJECT = Path()
TRACKED_FILE = Path("studies") / "tracked.json"
"""The list of studies that dvc.yaml makes stages of."""
STAGES = ("prepare", "sweep", "evaluate", "report")
LOCK_TIMEOUT_SECONDS = 3600.0
"""How long to wait for DVC's lock: longer than the commit of a large dataset takes."""

OnWait = Callable[[str], None]


@dataclass(frozen=True)
class PinnedRun:
    """A request as its run began: the content of its files, and the hashes that DVC has of them."""

    request: StudyRequest
    start: Mapping[str, StageOrigin] = field(default_factory=dict)
    """By the names of the stages; empty for a run that DVC does not know."""


def is_versioned(request: StudyRequest) -> bool:
    """Tells whether DVC knows this run: the study as its files say it, nothing changed by hand."""
    return is_file_itself(request.profile) and not request.overrides and has_repo(PROJECT)


def stage_name(stage: str, request: StudyRequest) -> str:
    """Returns the stage's name in dvc.yaml."""
    return stage if stage == "prepare" else f"{stage}@{request.study}"


def list_tracked(folder: Path = PROJECT) -> list[str]:
    """Returns the studies that have stages in dvc.yaml."""
    return list(_read_tracked(folder))


def _read_tracked(folder: Path = PROJECT) -> dict[str, str]:
    """Returns what the own datasets of each study with stages are made of, by the study's name.

    Raises:
        ConfigError: where the file is damaged, or names what is no study here.
    """
    path = folder / TRACKED_FILE
    form = '{"studies": {"main": {"raw": "studies/main.yaml"}}}'
    advice = f"Write it as {form}, or: git checkout -- {TRACKED_FILE}"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        # Without dvc.yaml a DVC project has its data tracked, and no stages.
        if not (folder / "dvc.yaml").exists():
            return {}
        raise ConfigError(str(path), [f"does not exist. {advice}"]) from error
    # Not UTF-8, or not JSON.
    except ValueError as error:
        raise ConfigError(str(path), [f"must be JSON: {error}. {advice}"]) from error
    entries = content.get("studies") if isinstance(content, dict) else None
    if not isinstance(entries, dict) or set(content) != {"studies"}:
        raise ConfigError(str(path), [f"must be a mapping of studies by their names. {advice}"])
    problems = [
        line for name, entry in entries.items() for line in _find_problems(name, entry, path.parent)
    ]
    if problems:
        raise ConfigError(str(path), problems)
    return {name: entry["raw"] for name, entry in entries.items()}


def _find_problems(name: str, entry: object, studies: Path) -> Iterator[str]:
    # dvc.yaml makes paths of the names, which DVC deletes before it runs a stage.
    if not re.fullmatch(NAME_PATTERN, name):
        yield f"studies must hold names of files in studies/. Got {name!r}. Remove it."
    elif not (studies / f"{name}.yaml").is_file():
        yield (
            f"studies names {name!r}, and there is no {STUDIES_FOLDER / name}.yaml. Bring the file "
            "back, or remove the name."
        )
    if not isinstance(entry, dict) or set(entry) != {"raw"} or not isinstance(entry["raw"], str):
        default = json.dumps({"raw": f"{STUDIES_FOLDER}/{name}.yaml"})
        yield f"studies.{name} must be as {default}. Got {json.dumps(entry)}."


def track_study(request: StudyRequest) -> None:
    """Gives a study its stages in dvc.yaml, where DVC should know of the run; twice is safe."""
    if not is_versioned(request):
        return
    raw = _find_own_raw(request)
    with folder_lock(PROJECT / ".dml" / "tracked"):
        tracked = _read_tracked()
        if tracked.get(request.study) == raw:
            return
        entries = {name: {"raw": path} for name, path in {**tracked, request.study: raw}.items()}
        partial = (PROJECT / TRACKED_FILE).with_suffix(".partial")
        partial.write_text(json.dumps({"studies": entries}, indent=2) + "\n", encoding="utf-8")
        os.replace(partial, PROJECT / TRACKED_FILE)


def _find_own_raw(request: StudyRequest) -> str:
    """Returns what the dataset that a study sets itself is made of; the study if it sets none."""
    # All arms of a study share one dataset.
    for data in load_context(request).own_datasets:
        if isinstance(data, DownloadedData):
            return data.raw
    return f"{STUDIES_FOLDER}/{request.study}.yaml"


def pin_run(request: StudyRequest, stages: Sequence[str] = STAGES) -> PinnedRun:
    """Returns a request with its files, and the hashes of what its stages read, as they are now.

    Raises:
        ConfigError: where a file of the request cannot be read.
    """
    while True:
        pinned = pin_files(request)
        start = _read_start(pinned, stages)
        # Otherwise the hashes may be those of an edit between the two.
        if pin_files(request) == pinned:
            return PinnedRun(pinned, start)


def _read_start(request: StudyRequest, stages: Sequence[str]) -> dict[str, StageOrigin]:
    if not is_versioned(request):
        return {}
    names = [stage_name(stage, request) for stage in stages]
    return wait_while_locked(
        lambda: read_origins(PROJECT, names, with_produced=False),
        timeout_seconds=LOCK_TIMEOUT_SECONDS,
        on_wait=LOGGER.warning,
    )


def is_stage_stale(
    stage: str,
    run: PinnedRun,
    *,
    on_wait: OnWait,
    timeout_seconds: float = LOCK_TIMEOUT_SECONDS,
) -> bool:
    """Tells whether a stage must run; a run that DVC does not know always must."""
    if not is_versioned(run.request):
        return True
    name = stage_name(stage, run.request)
    return wait_while_locked(
        lambda: differs_from_lock(PROJECT, name, _read_now(name, run)),
        timeout_seconds=timeout_seconds,
        on_wait=on_wait,
    )


def begin_stage(stage: str, run: PinnedRun, *, on_wait: OnWait) -> StageOrigin | None:
    """Returns what a stage that begins now is made of; None for a run that DVC does not know."""
    if not is_versioned(run.request):
        return None
    name = stage_name(stage, run.request)
    return wait_while_locked(
        lambda: _read_now(name, run), timeout_seconds=LOCK_TIMEOUT_SECONDS, on_wait=on_wait
    )


def _read_now(name: str, run: PinnedRun) -> StageOrigin:
    now = read_origins(PROJECT, [name])[name]
    return now.with_files_of(run.start[name]) if name in run.start else now


def find_stale_stages(request: StudyRequest) -> list[str]:
    """Returns the stages that are stale now or may turn out to be when those before them ran."""
    names = [stage_name(stage, request) for stage in STAGES]
    if not is_versioned(request) or request.study not in list_tracked():
        return names
    return wait_while_locked(
        lambda: stale_stages(PROJECT, [names[-1]], with_downstream=True),
        timeout_seconds=LOCK_TIMEOUT_SECONDS,
        on_wait=LOGGER.warning,
    )


def record_stage(
    stage: str,
    request: StudyRequest,
    *,
    origin: StageOrigin | None = None,
    on_wait: OnWait,
    timeout_seconds: float = LOCK_TIMEOUT_SECONDS,
) -> list[str]:
    """Writes to dvc.lock that a stage is done; nothing for a run that DVC does not know.

    Args:
        stage: which one.
        request: of which study.
        origin: what it was made of, from `begin_stage`; None takes the files as they are now.
        on_wait: gets who holds the project, now and then.
        timeout_seconds: how long to wait for it.

    Returns:
        The files, and the keys of params.yaml, that changed since it began: it is stale then.
    """
    if not is_versioned(request):
        return []
    name = stage_name(stage, request)
    return wait_while_locked(
        lambda: commit_stage(PROJECT, name, origin),
        timeout_seconds=timeout_seconds,
        on_wait=on_wait,
    )


def check_origin(stage: str, request: StudyRequest, origin: StageOrigin | None) -> None:
    """Raises StageChanged where what a stage is made of changed since it began.

    For a stage that `dvc repro` runs: DVC hashes what is there at the end, and writes no dvc.lock
    after a failure.
    """
    if origin is None:
        return
    name = stage_name(stage, request)
    changes = wait_while_locked(
        lambda: list_changes(PROJECT, name, origin),
        timeout_seconds=LOCK_TIMEOUT_SECONDS,
        on_wait=LOGGER.warning,
    )
    if changes:
        raise StageChanged(
            f"{name} is stale: {', '.join(changes)} changed while it ran, and DVC would record the "
            "new version as what its results were made of. They are kept, and not recorded. Run "
            "the same command again to use the new one."
        )


def describe_change(stage: str, request: StudyRequest, changes: Sequence[str]) -> str:
    """Returns the line that says why a stage that has just run is stale."""
    return (
        f"{stage_name(stage, request)} is stale: {', '.join(changes)} changed after this run "
        "began. Its results are of the former version, and dvc.lock says so. Run the same command "
        "again to use the new one."
    )


@contextmanager
def hold_stage(stage: str, request: StudyRequest, *, on_wait: OnWait) -> Iterator[bool]:
    """Keeps others from what a stage reads and writes, until it is committed.

    Other runs wait, and so does `dvc repro`: it would delete a stage's outputs, or replace data
    while trials open them.

    Yields:
        Whether another process held it before, and may have done the stage's work.
    """
    if not is_versioned(request):
        yield False
        return
    waited: list[str] = []

    def wait(line: str) -> None:
        waited.append(line)
        on_wait(line)

    with ExitStack() as stack:
        name = stage_name(stage, request)
        wait_while_locked(
            lambda: stack.enter_context(held_stage(PROJECT, name)),
            timeout_seconds=LOCK_TIMEOUT_SECONDS,
            on_wait=wait,
        )
        yield bool(waited)
