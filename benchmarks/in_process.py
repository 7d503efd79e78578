"""Trains the trials of a study sequentially in this process, without the pipeline.

Run as: python -m benchmarks.in_process STUDY OUTPUT PART PARTS, in a project's folder.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.projects import ROOT, Project, make_environment
from dml_core.data.prepared import open_development
from dml_core.training.in_folder import train_in_folder
from dml_core.trials.spec import TrialSpec
from tasks.study import StudyRequest, load_context

Trained = dict[str, dict[str, Any]]
"""Seconds and validation scores by trial."""


def train_in_processes(project: Project, study: str, *, processes: int, most: int = 0) -> Trained:
    """Trains all trials of a study, or the first ones, in concurrent processes."""
    with tempfile.TemporaryDirectory() as name:
        files = [Path(name) / f"{part}.json" for part in range(processes)]
        started = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.in_process", study, str(file), str(part),
                 str(processes), str(most)],
                cwd=project.folder,
                env=make_environment(
                    project.folder, PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1"
                ),
            )
            for part, file in enumerate(files)
        ]  # fmt: skip
        if any([process.wait() for process in started]):
            raise RuntimeError(f"a process that trains the trials of {study} failed; see above.")
        parts = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    return {trial: found for part in parts for trial, found in part.items()}


def list_specs(study: str) -> list[TrialSpec]:
    """Returns the trials of a study without tuning, in the order of its sweep."""
    found = load_context(StudyRequest(study=study)).study
    return found.repeat_specs({arm.name: {} for arm in found.arms})


def train_specs(specs: list[TrialSpec], folder: Path) -> Trained:
    """Trains trials in this process and returns the time and scores of each."""
    trained: Trained = {}
    opened: dict[str, Any] = {}
    for spec in specs:
        started = time.perf_counter()
        key = spec.config.data.model_dump_json()
        if key not in opened:
            opened[key] = open_development(spec.config.data)
        result = train_in_folder(spec.config, opened[key], folder / spec.trial_id)
        seconds = time.perf_counter() - started
        validation = result.reports[result.best_epoch - 1].validation
        trained[spec.trial_id] = {"seconds": seconds, "validation": validation}
    return trained


def main() -> None:
    """Trains one part of the trials."""
    study, output, part, parts, most = sys.argv[1:]
    specs = list_specs(study)[: int(most) or None]
    with tempfile.TemporaryDirectory() as name:
        trained = train_specs(specs[int(part) :: int(parts)], Path(name))
    Path(output).write_text(json.dumps(trained), encoding="utf-8")


if __name__ == "__main__":
    main()
