"""The stages of a study as DVC knows them: which are stale, and how one is recorded as done.

Imports no Prefect, so that a command can ask without starting it.
"""

import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from dml_core.config.data import DataBase, DownloadedData
from dml_core.config.problems import ConfigError
from dml_core.data.atomic_folder import folder_lock
from dml_core.studies.definition import NAME_PATTERN
from dml_core.studies.loading import is_file_itself
from dml_core.studies.own_code_checks import hash_own_code
from dml_core.training.activation_store import list_stored
from tasks.study import STUDIES_FOLDER, StudyRequest, load_context, pin_files, pin_seeds
from tasks.versioning.repo import (
    StageChanged,
    StageOrigin,
    commit_stage,
    differs_from_lock,
    held_stage,
    list_changes,
    read_origins,
    stale_stages,
)
from tasks.versioning.session import LOCK_TIMEOUT_SECONDS, has_repo, track, wait_while_locked

LOGGER = logging.getLogger(__name__)
PROJECT = Path()
TRACKED_FILE = Path("studies") / "tracked.json"
"""The studies that have stages in dvc.yaml."""
STAGES = ("prepare", "sweep", "evaluate", "report")

OnWait = Callable[[str], None]


@dataclass(frozen=True)
class PinnedRun:
    """A request as its run began: the content of its files, and DVC's hashes of them."""

    request: StudyRequest
    start: Mapping[str, StageOrigin] = field(default_factory=dict)
    """By stage name; empty for a run that DVC does not version."""


def is_versioned(request: StudyRequest) -> bool:
    """Returns whether DVC versions this run: the study as its files define it, without `--set`."""
    return is_file_itself(request.profile) and not request.overrides and has_repo(PROJECT)


def stage_name(stage: str, request: StudyRequest) -> str:
    """Returns the stage's name in dvc.yaml."""
    return stage if stage == "prepare" else f"{stage}@{request.study}"


def list_tracked(folder: Path = PROJECT) -> list[str]:
    """Returns the studies that have stages in dvc.yaml."""
    return list(_read_tracked(folder))


def _read_tracked(folder: Path = PROJECT) -> dict[str, dict[str, str]]:
    """Returns the files that each tracked study depends on beside its own, by its name.

    Raises:
        ConfigError: where the file is damaged, or names a study that does not exist.
    """
    path = folder / TRACKED_FILE
    form = json.dumps({"studies": {"main": _entry_of("main")}})
    advice = f"Write it as {form}, or: git checkout -- {TRACKED_FILE}"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        # A DVC project without dvc.yaml tracks data and has no stages.
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
    return entries


def _entry_of(study: str, *, raw: str = "", seeds: str = "") -> dict[str, str]:
    """Returns a study's entry; its own file stands for a file that it does not have."""
    itself = f"{STUDIES_FOLDER}/{study}.yaml"
    return {"raw": raw or itself, "seeds": seeds or itself}


def _find_problems(name: str, entry: object, studies: Path) -> Iterator[str]:
    # dvc.yaml builds paths from the names, and DVC deletes those before it runs a stage.
    if not re.fullmatch(NAME_PATTERN, name):
        yield f"studies must hold names of files in studies/. Got {name!r}. Remove it."
    elif not (studies / f"{name}.yaml").is_file():
        yield (
            f"studies names {name!r}, and there is no {STUDIES_FOLDER / name}.yaml. Bring the file "
            "back, or remove the name."
        )
    default = _entry_of(name)
    is_whole = isinstance(entry, dict) and set(entry) == set(default)
    if not is_whole or not all(isinstance(value, str) for value in entry.values()):
        yield f"studies.{name} must be as {json.dumps(default)}. Got {json.dumps(entry)}."


def track_study(request: StudyRequest) -> None:
    """Adds the stages of a versioned study to dvc.yaml; running it twice is safe."""
    if not is_versioned(request):
        return
    seeds = str(request.seeds_path) if request.seeds_path.exists() else ""
    entry = _entry_of(request.study, raw=_find_own_raw(request), seeds=seeds)
    with folder_lock(PROJECT / ".dml" / "tracked"):
        tracked = _read_tracked()
        if tracked.get(request.study) == entry:
            return
        _write_tracked({**tracked, request.study: entry})


def untrack_study(study: str) -> None:
    """Removes the stages of a study from dvc.yaml, so that `dvc repro` does not run it again."""
    with folder_lock(PROJECT / ".dml" / "tracked"):
        tracked = _read_tracked()
        if tracked.pop(study, None) is not None:
            _write_tracked(tracked)


def _write_tracked(tracked: Mapping[str, Mapping[str, str]]) -> None:
    partial = (PROJECT / TRACKED_FILE).with_suffix(".partial")
    partial.write_text(json.dumps({"studies": tracked}, indent=2) + "\n", encoding="utf-8")
    os.replace(partial, PROJECT / TRACKED_FILE)


def _find_own_raw(request: StudyRequest) -> str:
    """Returns the raw data of the dataset that a study sets itself; empty if it sets none."""
    # All arms of a study share one dataset.
    for data in load_context(request).own_datasets:
        if isinstance(data, DownloadedData):
            return data.raw
    return ""


def pin_run(request: StudyRequest, stages: Sequence[str] = STAGES) -> PinnedRun:
    """Returns a request with the content of its files and the hashes of its stages' inputs.

    Raises:
        ConfigError: where a file of the request cannot be read.
    """
    while True:
        pinned = pin_files(request)
        start = _read_start(pinned, stages)
        # An edit between the two reads would give hashes of another content.
        if pin_files(request) == pinned:
            return PinnedRun(pinned, start)


def pin_look(run: PinnedRun) -> PinnedRun:
    """Returns a run with the seeds that were added meanwhile; all else is that of its start."""
    request = pin_seeds(run.request)
    start = _read_start(request, STAGES)
    path = str(request.seeds_path)
    return PinnedRun(
        request,
        {name: _with_earlier(now, run.start.get(name), path) for name, now in start.items()},
    )


def _with_earlier(now: StageOrigin, start: StageOrigin | None, changed: str) -> StageOrigin:
    """Returns an origin with all hashes of the start but that of one file."""
    earlier = start.dependencies if start is not None else {}
    kept = {path: v for path, v in earlier.items() if path in now.dependencies and path != changed}
    return replace(now, dependencies={**now.dependencies, **kept})


def _read_start(request: StudyRequest, stages: Sequence[str]) -> dict[str, StageOrigin]:
    if not is_versioned(request):
        return {}
    names = [stage_name(stage, request) for stage in stages]
    return wait_while_locked(
        lambda: read_origins(PROJECT, names, with_produced=False), on_wait=LOGGER.warning
    )


def is_stage_stale(
    stage: str,
    run: PinnedRun,
    *,
    on_wait: OnWait,
    timeout_seconds: float = LOCK_TIMEOUT_SECONDS,
) -> bool:
    """Returns whether a stage must run; always true for a run that DVC does not version."""
    if not is_versioned(run.request):
        return True
    if stage == "sweep" and _has_other_own_code(run.request):
        return True
    name = stage_name(stage, run.request)
    return wait_while_locked(
        lambda: differs_from_lock(PROJECT, name, _read_now(name, run)),
        timeout_seconds=timeout_seconds,
        on_wait=on_wait,
    )


def _has_other_own_code(request: StudyRequest) -> bool:
    """Returns whether a study's results are of other own code than it names now.

    dvc.yaml does not name the files of own code. A study with mistakes names none; its stages
    report them.
    """
    try:
        context = load_context(request)
    except ConfigError:
        return False
    now = hash_own_code(context.study)
    if not now:
        return False
    try:
        recorded = json.loads((context.sweep_folder / "sweep.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return True
    return bool(recorded.get("own_code") != now)


def begin_stage(stage: str, run: PinnedRun, *, on_wait: OnWait) -> StageOrigin | None:
    """Returns the inputs of a stage that begins now; None where DVC does not version the run."""
    if not is_versioned(run.request):
        return None
    name = stage_name(stage, run.request)
    return wait_while_locked(lambda: _read_now(name, run), on_wait=on_wait)


def _read_now(name: str, run: PinnedRun) -> StageOrigin:
    now = read_origins(PROJECT, [name])[name]
    return now.with_files_of(run.start[name]) if name in run.start else now


def find_stale_stages(request: StudyRequest) -> list[str]:
    """Returns the stages that are stale, and those after them, which may become stale."""
    names = [stage_name(stage, request) for stage in STAGES]
    if not is_versioned(request) or request.study not in list_tracked():
        return names
    if _has_other_own_code(request):
        return names[STAGES.index("sweep") :]
    return wait_while_locked(
        lambda: stale_stages(PROJECT, [names[-1]], with_downstream=True), on_wait=LOGGER.warning
    )


def record_stage(
    stage: str,
    request: StudyRequest,
    *,
    origin: StageOrigin | None = None,
    on_wait: OnWait,
    timeout_seconds: float = LOCK_TIMEOUT_SECONDS,
) -> list[str]:
    """Writes a finished stage to dvc.lock; does nothing where DVC does not version the run.

    Args:
        stage: which one.
        request: of which study.
        origin: its inputs, from `begin_stage`; None takes the files as they are now.
        on_wait: gets the lock's holder from time to time.
        timeout_seconds: how long to wait for the lock.

    Returns:
        The files and keys of params.yaml that changed since the stage began and make it stale.
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
    """Raises StageChanged where the inputs of a stage changed since it began.

    For a stage that `dvc repro` runs: DVC hashes the inputs at the end, and writes no dvc.lock
    after a failure.
    """
    if origin is None:
        return
    name = stage_name(stage, request)
    changes = wait_while_locked(lambda: list_changes(PROJECT, name, origin), on_wait=LOGGER.warning)
    if changes:
        raise StageChanged(
            f"{name} is stale: {', '.join(changes)} changed while it ran, and DVC would record the "
            "new version as the input of its results. They are kept, and not recorded. Run the "
            "same command again to use the new version."
        )


def describe_change(stage: str, request: StudyRequest, changes: Sequence[str]) -> str:
    """Returns the line that explains why a stage that has just run is stale."""
    return (
        f"{stage_name(stage, request)} is stale: {', '.join(changes)} changed after this run "
        "began. Its results are of the former version, and dvc.lock says so. Run the same command "
        "again to use the new version."
    )


@contextmanager
def hold_stage(stage: str, request: StudyRequest, *, on_wait: OnWait) -> Iterator[bool]:
    """Locks the inputs and outputs of a stage until it is committed.

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
        wait_while_locked(lambda: stack.enter_context(held_stage(PROJECT, name)), on_wait=wait)
        yield bool(waited)


def track_activations(request: StudyRequest) -> list[Path]:
    """Adds each new folder of cached activations to DVC with its `.dvc` file; returns these.

    DVC then keeps, pushes and pulls them. Does nothing for a run that DVC does not version, nor
    for data outside the project.
    """
    if not is_versioned(request):
        return []
    folders = _list_new(load_context(request).datasets)
    for folder in folders:
        wait_while_locked(lambda folder=folder: track(PROJECT, folder), on_wait=LOGGER.warning)
    return folders


def _list_new(datasets: Iterable[DataBase]) -> list[Path]:
    found = {folder for data in datasets for folder in list_stored(data)}
    inside = [folder for folder in found if folder.resolve().is_relative_to(PROJECT.resolve())]
    return sorted(folder for folder in inside if _is_new(folder))


def _is_new(folder: Path) -> bool:
    """Returns whether DVC knows no version of the folder, or an older one."""
    known = folder.with_name(f"{folder.name}.dvc")
    if not known.exists():
        return True
    written = known.stat().st_mtime_ns
    return any(file.stat().st_mtime_ns > written for file in folder.iterdir())
