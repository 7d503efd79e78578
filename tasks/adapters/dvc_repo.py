"""Asks DVC which stages are stale, and tells it which ones are done."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import networkx
from dvc.repo import Repo, lock_repo
from dvc.stage import PipelineStage

from dml_core.config.problems import suggest
from tasks.adapters.dvc_session import DvcError, has_repo, open_repo

__all__ = ["DvcError", "commit_stage", "has_repo", "list_stages", "reproduce", "stale_stages"]


def list_stages(folder: Path, targets: Sequence[str] = ()) -> list[str]:
    """Returns the names of the targets and of all stages before them, in order of running.

    Args:
        folder: the root of the project.
        targets: names such as `report@main`, or `report` for all its studies; none takes all.
    """
    with open_repo(folder) as repo, lock_repo(repo):
        return [stage.name for stage in _ordered(repo, targets)]


def stale_stages(
    folder: Path, targets: Sequence[str] = (), *, with_downstream: bool = False
) -> list[str]:
    """Returns the stages that changed since they were last committed, in order of running.

    A stage is stale when its command, its parameters, a file that it reads or one that it wrote
    is another than in dvc.lock. Whether a stage after a stale one has to run too is known once
    that one has run: ask again after each.

    Args:
        folder: the root of the project.
        targets: look only at these stages and those before them; none takes all.
        with_downstream: also return those after a stale stage, which may turn out to be stale.
    """
    with open_repo(folder) as repo, lock_repo(repo):
        ordered = _ordered(repo, targets)
        stale = {stage for stage in ordered if stage.status(check_updates=True)}
        if with_downstream:
            graph = repo.index.graph
            stale |= {s for stage in list(stale) for s in networkx.ancestors(graph, stage)}
        return [stage.name for stage in ordered if stage in stale]


def commit_stage(folder: Path, name: str) -> None:
    """Writes to dvc.lock that a stage ran outside DVC, and puts its outputs into the cache.

    Running it twice is safe. The project stays locked from the reading of dvc.lock to its
    writing, so that what other processes commit is kept.
    """
    with open_repo(folder) as repo, lock_repo(repo):
        if name not in (known := [stage.name for stage in _pipeline_stages(repo)]):
            raise _unknown_stage(name, known)
        # DVC takes names and some paths of a stage to be relative to the current folder.
        with contextlib.chdir(repo.root_dir):
            repo.commit(name, force=True)


def reproduce(folder: Path, targets: Sequence[str] = ()) -> None:
    """Runs `dvc repro`, which prints as it goes; a DvcError if a stage fails."""
    if not has_repo(folder):
        raise DvcError(f"{folder} is no DVC project, there is no folder .dvc. Run: dvc init")
    # Stages call `dml`, which may lie beside this interpreter without being on the path.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    command = [sys.executable, "-m", "dvc", "repro", *targets]
    done = subprocess.run(command, cwd=folder, env={**os.environ, "PATH": path}, check=False)
    if done.returncode:
        raise DvcError(
            f"`dvc repro {' '.join(targets)}` in {folder} ended with code {done.returncode}. "
            "The reason stands above; the same command goes on with the stage that failed."
        )


def _pipeline_stages(repo: Repo) -> list[PipelineStage]:
    return [stage for stage in repo.index.stages if isinstance(stage, PipelineStage)]


def _ordered(repo: Repo, targets: Sequence[str]) -> list[PipelineStage]:
    """The wanted pipeline stages, each after those that it reads from."""
    graph, stages = repo.index.graph, repo.index.stages
    wanted = set(_choose(_pipeline_stages(repo), targets))
    # Edges of DVC's graph point from a stage to those that it depends on.
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
            f"{study!r}. It names: {studies}.{suggest(name, known)} Add the study's name to that "
            f"list, or run: dml run {study}"
        )
    return DvcError(
        f"dvc.yaml has no stage {name!r}. Its stages are {', '.join(known)}.{suggest(name, known)}"
    )
