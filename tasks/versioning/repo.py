"""Asks DVC which stages are stale, and writes finished ones to dvc.lock.

DVC hashes the inputs of a stage when the stage has ended. A run uses its files as they were when
it began, so its stages are compared and committed with the hashes of that moment, which a
StageOrigin holds.
"""

import contextlib
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import networkx
from dvc.dependency import ParamsDependency
from dvc.dvcfile import Lockfile
from dvc.fs import localfs
from dvc.repo import Repo, lock_repo
from dvc.rwlock import rwlock
from dvc.stage import PipelineStage
from dvc_data.hashfile.hash_info import HashInfo
from dvc_data.hashfile.meta import Meta

from dml_core.config.loading import flatten
from dml_core.config.problems import suggest
from tasks.versioning.session import DvcError, open_repo, plain_errors


class StageChanged(DvcError):
    """dvc.yaml defines a stage differently than when it began."""


@dataclass(frozen=True)
class StageOrigin:
    """The inputs of a stage, with their hashes at one moment."""

    command: str
    outputs: tuple[str, ...]
    """Paths, as dvc.yaml has them."""
    dependencies: Mapping[str, tuple[Any, Any]]
    """DVC's hash and size of each file and folder, and the values of params.yaml, by path."""
    produced: frozenset[str]
    """The dependencies that other stages write."""

    def with_files_of(self, start: "StageOrigin") -> "StageOrigin":
        """Returns this origin with the files that no stage writes as they were at the start."""
        earlier = {
            path: value for path, value in start.dependencies.items() if path not in self.produced
        }
        # A stage that dvc.yaml defines differently now is found when it is committed.
        if not self.has_shape_of(start):
            return start
        return replace(self, dependencies={**self.dependencies, **earlier})

    def has_shape_of(self, other: "StageOrigin") -> bool:
        """Returns whether both name the same command, outputs and dependencies."""
        return (self.command, self.outputs, set(self.dependencies)) == (
            other.command,
            other.outputs,
            set(other.dependencies),
        )

    def list_changes(self, now: "StageOrigin") -> list[str]:
        """Returns the files and the keys of params.yaml that have changed."""
        changes: list[str] = []
        for path in sorted({*self.dependencies, *now.dependencies}):
            before, after = (
                dict(origin.dependencies).get(path, (None, None))[0] for origin in (self, now)
            )
            if before == after:
                continue
            if before is not None and after is not None and isinstance(before.value, dict):
                changes += [f"{path}: {key}" for key in _differing(before.value, after.value)]
            else:
                changes.append(path)
        if self.command != now.command or self.outputs != now.outputs:
            changes.append("dvc.yaml, or a value that it refers to")
        return changes


def stale_stages(
    folder: Path, targets: Sequence[str] = (), *, with_downstream: bool = False
) -> list[str]:
    """Returns the stages that changed since they were last committed, in execution order.

    A stage is stale when its command, its parameters, an input or an output differs from
    dvc.lock. Whether a stage after a stale one must run too is known once that one has run: call
    this again after each.

    Args:
        folder: the root of the project.
        targets: only these stages and those before them; none takes all.
        with_downstream: also return the stages after a stale one, which may become stale.
    """
    with open_repo(folder) as repo, lock_repo(repo):
        ordered = _ordered(repo, targets)
        stale = {stage for stage in ordered if stage.status(check_updates=True)}
        if with_downstream:
            graph = repo.index.graph
            stale |= {s for stage in list(stale) for s in networkx.ancestors(graph, stage)}
        return [stage.name for stage in ordered if stage in stale]


def read_origins(
    folder: Path, names: Sequence[str], *, with_produced: bool = True
) -> dict[str, StageOrigin]:
    """Returns the inputs of each stage now; an input that does not exist yet has no hash.

    Args:
        folder: the root of the project.
        names: of the stages.
        with_produced: also hash the outputs of other stages.

    Raises:
        DvcLocked: when another process writes an input.
    """
    with open_repo(folder) as repo, lock_repo(repo):
        stages = [_find_stage(repo, name) for name in names]
        return {
            stage.name: _read_origin(repo, stage, with_produced=with_produced) for stage in stages
        }


def differs_from_lock(folder: Path, name: str, origin: StageOrigin) -> bool:
    """Returns whether a stage must run: its inputs or its outputs differ from dvc.lock."""
    with open_repo(folder) as repo, lock_repo(repo):
        stage = _find_stage(repo, name)
        recorded = _describe_stage(repo, stage)
        return bool(stage.cmd_changed or recorded.list_changes(origin) or stage.changed_outs())


def commit_stage(folder: Path, name: str, origin: StageOrigin | None = None) -> list[str]:
    """Writes a stage that ran outside DVC to dvc.lock, and adds its outputs to the cache.

    Running it twice is safe. The project stays locked between reading and writing dvc.lock, so
    that commits of other processes are kept.

    Args:
        folder: the root of the project.
        name: the stage.
        origin: the inputs of the outputs; None takes the files as they are now.

    Returns:
        The inputs that changed since then and make the stage stale.

    Raises:
        StageChanged: where dvc.yaml names other files now; dvc.lock is left as it was.
    """
    with open_repo(folder) as repo, lock_repo(repo):
        stage = _find_stage(repo, name)
        # DVC resolves some paths of a stage relative to the working directory.
        with contextlib.chdir(repo.root_dir):
            now = _read_origin(repo, stage)
            origin = _accept_restored(repo, origin, now) if origin else now
            if not now.has_shape_of(origin):
                raise StageChanged(
                    f"dvc.yaml, or a value of params.yaml in it, names other files for stage "
                    f"{name!r} than when it began. Its outputs are there, and dvc.lock is left as "
                    "it was. Run the same command again."
                )
            _check_is_there(stage, origin)
            for dependency in stage.deps:
                value = origin.dependencies[dependency.def_path]
                dependency.hash_info, dependency.meta = value
            stage.save_outs()
            stage.md5 = stage.compute_md5()
            repo.stage_cache.save(stage)
            stage.commit()
            _write_lock(repo, stage)
        return origin.list_changes(now)


def _write_lock(repo: Repo, stage: PipelineStage) -> None:
    """Adds a stage to dvc.lock, whole or not at all."""
    lock = Path(repo.root_dir, "dvc.lock")
    # DVC writes dvc.lock in place: a process killed meanwhile would leave it empty or cut short.
    partial = Path(repo.tmp_dir, "dvc.lock.partial")
    partial.unlink(missing_ok=True)
    if lock.exists():
        shutil.copy(lock, partial)
    Lockfile(repo, str(partial)).dump(stage)
    os.replace(partial, lock)


def list_changes(folder: Path, name: str, origin: StageOrigin) -> list[str]:
    """Returns the inputs that changed since a stage began, from `read_origins`."""
    with open_repo(folder) as repo, lock_repo(repo):
        now = _read_origin(repo, _find_stage(repo, name))
        return _accept_restored(repo, origin, now).list_changes(now)


@contextmanager
def held_stage(folder: Path, name: str) -> Iterator[None]:
    """Locks a stage as `dvc repro` does: others cannot write its inputs nor touch its outputs.

    Raises:
        DvcLocked: when another process holds a part of it.
    """
    with open_repo(folder) as repo, lock_repo(repo):
        stage = _find_stage(repo, name)
        read = [dependency.fs_path for dependency in stage.deps]
        held = _locked(repo, read=read, write=[out.fs_path for out in stage.outs])
    with ExitStack() as stack:
        with plain_errors(folder):
            stack.enter_context(held)
        yield


def _find_stage(repo: Repo, name: str) -> PipelineStage:
    stages = {stage.name: stage for stage in _pipeline_stages(repo)}
    if name not in stages:
        raise _unknown_stage(name, list(stages))
    return stages[name]


def _check_is_there(stage: PipelineStage, origin: StageOrigin) -> None:
    """Raises DvcError where an input or output of a stage does not exist."""
    if gone := [out.def_path for out in stage.outs if not out.exists]:
        raise DvcError(
            f"stage {stage.name!r} wrote {', '.join(gone)}, and it is gone: it was deleted during "
            "the run. dvc.lock is left as it was. Run the same command again to recreate it."
        )
    missing = [path for path, (found, _) in origin.dependencies.items() if not found]
    if missing:
        raise DvcError(
            f"stage {stage.name!r} must be recorded with the hash of {', '.join(missing)}, and "
            "DVC finds no such file or folder. Write a path outside of the project in full, "
            "without ~, then run the same command again."
        )


def _accept_restored(repo: Repo, origin: StageOrigin, now: StageOrigin) -> StageOrigin:
    """Returns an origin with the current hashes of inputs that a stage found damaged and restored.

    They again have the bytes that the stage before it was recorded with.
    """
    changed = set(origin.list_changes(now)) & now.produced
    if not changed:
        return origin
    restored = {path: now.dependencies[path] for path in changed if _is_as_recorded(repo, path)}
    return replace(origin, dependencies={**origin.dependencies, **restored})


def _is_as_recorded(repo: Repo, path: str) -> bool:
    whole = str(Path(repo.root_dir, path))
    writers = [
        stage
        for stage in _pipeline_stages(repo)
        if any(localfs.isin_or_eq(whole, out.fs_path) for out in stage.outs)
    ]
    return not any(stage.changed_outs() for stage in writers)


def _read_origin(repo: Repo, stage: PipelineStage, *, with_produced: bool = True) -> StageOrigin:
    produced = _describe_stage(repo, stage).produced
    wanted = [d for d in stage.deps if with_produced or d.def_path not in produced]
    # As `dvc repro` does, so that files which another process writes are not read half done.
    with _locked(repo, read=[d.fs_path for d in wanted if d.def_path in produced], write=[]):
        for dependency in stage.deps:
            # Before this it has the hash of dvc.lock.
            dependency.hash_info, dependency.meta = HashInfo(), Meta()
            if dependency in wanted and dependency.exists:
                dependency.save()
    return _describe_stage(repo, stage)


def _locked(
    repo: Repo, *, read: list[str], write: list[str]
) -> contextlib.AbstractContextManager[None]:
    """Returns DVC's lock on files; it identifies holders by their process and its command."""
    hardlink = repo.config["core"].get("hardlink_lock", False)
    held: contextlib.AbstractContextManager[None] = rwlock(
        repo.tmp_dir, localfs, " ".join(sys.argv), read, write, hardlink
    )
    return held


def _describe_stage(repo: Repo, stage: PipelineStage) -> StageOrigin:
    written = [out.fs_path for other in _pipeline_stages(repo) for out in other.outs]
    return StageOrigin(
        command=str(stage.cmd),
        outputs=tuple(sorted(out.def_path for out in stage.outs)),
        dependencies={d.def_path: (d.hash_info, d.meta) for d in stage.deps},
        produced=frozenset(
            d.def_path
            for d in stage.deps
            if not isinstance(d, ParamsDependency)
            and any(localfs.isin_or_eq(d.fs_path, path) for path in written)
        ),
    )


def _differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    old, new = flatten(before), flatten(after)
    keys = sorted({*old, *new})
    return [key for key in keys if old.get(key) != new.get(key) or (key in old) != (key in new)]


def _pipeline_stages(repo: Repo) -> list[PipelineStage]:
    return [stage for stage in repo.index.stages if isinstance(stage, PipelineStage)]


def _ordered(repo: Repo, targets: Sequence[str]) -> list[PipelineStage]:
    """Returns the wanted pipeline stages, each after those that it reads from."""
    graph, stages = repo.index.graph, repo.index.stages
    wanted = set(_choose(_pipeline_stages(repo), targets))
    # Edges of DVC's graph point from a stage to its dependencies.
    wanted |= {before for stage in list(wanted) for before in networkx.descendants(graph, stage)}
    place = {stage: number for number, stage in enumerate(stages)}
    order = networkx.lexicographical_topological_sort(graph.reverse(), key=place.__getitem__)
    return [stage for stage in order if stage in wanted and isinstance(stage, PipelineStage)]


def _choose(stages: Sequence[PipelineStage], targets: Sequence[str]) -> Iterable[PipelineStage]:
    if not targets:
        return stages
    chosen: list[PipelineStage] = []
    for target in targets:
        found = [s for s in stages if s.name == target or s.name.startswith(f"{target}@")]
        if not found:
            raise _unknown_stage(target, [stage.name for stage in stages])
        chosen += found
    return chosen


def _unknown_stage(name: str, known: Sequence[str]) -> DvcError:
    stage, at, study = name.partition("@")
    of_stage = [other for other in known if other.startswith(f"{stage}@")]
    if at and of_stage:
        studies = ", ".join(other.partition("@")[2] for other in of_stage)
        return DvcError(
            f"dvc.yaml has no stage {name!r}, because studies/tracked.json does not name "
            f"{study!r}. It names: {studies}.{suggest(name, known)} Add the study there, or run: "
            f"dml run {study}"
        )
    return DvcError(
        f"dvc.yaml has no stage {name!r}. Its stages are {', '.join(known)}.{suggest(name, known)}"
    )
