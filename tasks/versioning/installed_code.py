"""The version of the installed code, in a file that the stages of a project depend on.

In a clone, dvc.yaml names the folders of the sources. A project of `dml init` has none; its stages
depend on code.json instead, which holds a hash of the installed code of each stage. A run writes
the file again after an upgrade, and those stages become stale whose code has changed.
"""

import hashlib
import json
import logging
import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from dml_core.trials.key import read_libraries
from tasks.sources import imported_tree

LOGGER = logging.getLogger(__name__)
PROJECT = Path()
CODE_FILE = "code.json"
_TRAINING = (
    *(
        "dml_core/data",
        "dml_core/devices.py",
        "dml_core/evaluation",
        "dml_core/losses",
        "dml_core/models",
    ),
    *("dml_core/own_code.py", "dml_core/samplers", "dml_core/seeding.py", "dml_core/studies"),
    *("dml_core/training", "dml_core/trials"),
)
STAGE_CODE = {
    "prepare": (
        *("dml_core/config/data.py", "dml_core/data", "dml_core/own_code.py"),
        "dml_core/seeding.py",
    ),
    "sweep": ("dml_core/config", *_TRAINING, "tasks/sweep"),
    "evaluate": (
        *(*_TRAINING, "dml_core/measures"),
        *("tasks/evaluate.py", "tasks/evaluate_models.py"),
    ),
    "report": (
        *("dml_core/analysis", "dml_core/own_code.py", "dml_core/studies"),
        *("tasks/report_page", "tasks/report.py", "tasks/tracking/identity.py"),
    ),
}
"""The code behind the numbers of each stage: the same as in the dvc.yaml of a clone."""
_WITH_LIBRARIES = ("sweep", "evaluate")
"""Stages whose numbers depend on the numerical libraries too."""


def describe_code(tree: Path | None = None) -> dict[str, str]:
    """Returns the version of the installed code, and a hash of each stage's part of it."""
    root = tree or imported_tree()
    try:
        number = version("dml")
    except PackageNotFoundError:
        number = "unknown"
    return {"version": number, **{stage: _hash_stage(root, stage) for stage in STAGE_CODE}}


def refresh_code(project: Path = PROJECT) -> None:
    """Writes code.json again where it is of other code; does nothing in a clone.

    Safe to run twice, and by several processes.
    """
    if not depends_on_code_file(project):
        return
    path, now = project / CODE_FILE, describe_code()
    before = _read(path)
    if before == now:
        return
    write_code(project, now)
    if before:
        changed = [stage for stage in STAGE_CODE if before.get(stage) != now[stage]]
        LOGGER.warning(
            "%s was of dml %s and is of the installed code now, dml %s. Stale: %s.",
            *(path, before.get("version", "?"), now["version"]),
            ", ".join(changed) or "no stage",
        )


def write_code(project: Path, code: dict[str, str]) -> Path:
    """Writes code.json, whole or not at all, and returns its path."""
    path = project / CODE_FILE
    partial = path.with_name(f".{CODE_FILE}.partial-{os.getpid()}")
    partial.write_text(json.dumps(code, indent=2) + "\n", encoding="utf-8")
    os.replace(partial, path)
    return path


def depends_on_code_file(project: Path) -> bool:
    """Returns whether the stages of a project depend on code.json, as those of no clone do."""
    try:
        return CODE_FILE in (project / "dvc.yaml").read_text(encoding="utf-8")
    except OSError:
        return False


def _read(path: Path) -> dict[str, str]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _hash_stage(root: Path, stage: str) -> str:
    hasher = hashlib.sha256()
    for part in STAGE_CODE[stage]:
        path = root / part
        files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
        for file in files:
            if "__pycache__" not in file.parts:
                hasher.update(f"{file.relative_to(root).as_posix()}\0".encode())
                hasher.update(file.read_bytes())
    if stage in _WITH_LIBRARIES:
        hasher.update(json.dumps(read_libraries(), sort_keys=True).encode())
    return hasher.hexdigest()[:16]
