"""Makes a project that is no clone: parameters, studies and stages of the installed code."""

import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tasks.sources import imported_tree
from tasks.versioning.installed_code import CODE_FILE, STAGE_CODE, describe_code, write_code
from tasks.versioning.session import DvcError, open_repo, plain_errors, quiet
from tasks.versioning.stages import TRACKED_FILE

_TEMPLATE = Path("tasks") / "project_template"
"""Where the wheel has the files of a project."""
_CODE_LINE = re.compile(r"^\s*- (?:dml_core|tasks|requirements\.lock)\S*\n", re.MULTILINE)
_STAGE = re.compile(r"^  (\w+):$", re.MULTILINE)
_FIRST_STUDY = "main"
_CLONE_ONLY = "# Databases of drills that were killed.\n/.drills/\n"
_DVC_SETTINGS = "[core]\n    analytics = false\n    check_update = false\n"


class FolderInUse(ValueError):
    """A new project needs an empty folder."""


def make_project(folder: Path) -> list[str]:
    """Makes a project in a folder, which must be new or empty; returns the names of its studies.

    Raises:
        FolderInUse: where the folder has content.
        DvcError: where DVC refuses; nothing is left then.
    """
    target = folder.expanduser().resolve()
    _check_is_empty(target)
    with _whole(target):
        for source, name in _list_template():
            copy = target / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
        stages = target / "dvc.yaml"
        stages.write_text(adapt_stages(stages.read_text(encoding="utf-8")), encoding="utf-8")
        ignored = target / ".gitignore"
        ignored.write_text(
            ignored.read_text(encoding="utf-8").replace(_CLONE_ONLY, ""), encoding="utf-8"
        )
        itself = f"studies/{_FIRST_STUDY}.yaml"
        tracked = {"studies": {_FIRST_STUDY: {"raw": itself, "seeds": itself}}}
        (target / TRACKED_FILE).write_text(json.dumps(tracked, indent=2) + "\n", encoding="utf-8")
        write_code(target, describe_code())
        _begin_versioning(target)
    return sorted(path.stem for path in (target / "studies").glob("*.yaml"))


def adapt_stages(text: str) -> str:
    """Returns the dvc.yaml of a clone for a project without sources.

    The folders of sources among the dependencies give way to the stage's hash in code.json.
    """
    pieces = _STAGE.split(text)
    adapted = [_CODE_LINE.sub("", pieces[0])]
    for stage, body in zip(pieces[1::2], pieces[2::2], strict=True):
        indent = "      " if "    do:\n" in body else "    "
        entry = f"{indent}  - {CODE_FILE}:\n{indent}      - {stage}\n"
        body = _CODE_LINE.sub("", body)
        head = f"{indent}params:\n"
        if head in body:
            body = body.replace(head, head + entry, 1)
        else:
            body = body.replace(f"{indent}outs:\n", f"{head}{entry}{indent}outs:\n", 1)
        adapted.append(f"  {stage}:{body}")
    intro = (
        "# A stage depends on the code folders behind its numbers, on its sections of params.yaml, "
        "on its study\n# and on the stage before it. So an edited loss makes sweeps stale, but not "
        "the data.\n"
    )
    now = (
        f"# A stage depends on its sections of params.yaml, on its study, on the stage before it, "
        f"and on the\n# installed code, by its hash in {CODE_FILE}. `dml run` writes that file "
        "again after an upgrade.\n"
    )
    return "".join(adapted).replace(intro, now)


def _list_template() -> Iterator[tuple[Path, Path]]:
    """Yields each file of a new project and its name in it."""
    tree = imported_tree()
    packed = tree / _TEMPLATE
    if packed.is_dir():
        for path in sorted(p for p in packed.rglob("*") if p.is_file()):
            yield path, path.relative_to(packed)
        return
    settings = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))
    for pattern in settings["tool"]["dml"]["project-template"]["files"]:
        for path in sorted(tree.glob(pattern)):
            yield path, path.relative_to(tree)


def _check_is_empty(target: Path) -> None:
    if target.exists() and not target.is_dir():
        raise FolderInUse(f"{target} must be a folder for a new project. Got a file.")
    found = sorted(path.name for path in target.iterdir()) if target.is_dir() else []
    # A repository without files is as good as none.
    if found and found != [".git"]:
        raise FolderInUse(
            f"{target} must be new or empty for a project. Found {', '.join(found[:5])}"
            f"{', ...' if len(found) > 5 else ''}. Choose another folder: dml init FOLDER"
        )


@contextmanager
def _whole(target: Path) -> Iterator[None]:
    """Removes what was made of a project where the block fails."""
    existed = target.is_dir()
    kept = {path.name for path in target.iterdir()} if existed else set()
    target.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for path in [path for path in target.iterdir() if path.name not in kept]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if not existed:
            target.rmdir()
        raise


def _begin_versioning(target: Path) -> None:
    """Initialises git, unless the folder is in a repository already, and DVC."""
    from dvc.repo import Repo

    if shutil.which("git") is None:
        has_git, is_root = False, False
    else:
        if not _ask_git(target, "rev-parse", "--show-toplevel"):
            _ask_git(target, "init", "--quiet")
        root = _ask_git(target, "rev-parse", "--show-toplevel")
        has_git, is_root = bool(root), bool(root) and Path(root).resolve() == target
    with quiet(), plain_errors(target):
        Repo.init(str(target), no_scm=not has_git, subdir=has_git and not is_root).close()
    config = target / ".dvc" / "config"
    settings = config.read_text(encoding="utf-8")
    if "analytics" not in settings:
        without_git = "    no_scm = True\n" if not has_git else ""
        config.write_text(_DVC_SETTINGS + without_git, encoding="utf-8")
    with open_repo(target) as repo:
        names = {stage.name for stage in repo.index.stages}
    wanted = {"prepare", *(f"{stage}@{_FIRST_STUDY}" for stage in STAGE_CODE if stage != "prepare")}
    if not wanted <= names:
        raise DvcError(f"DVC finds the stages {sorted(names)}, and not {sorted(wanted - names)}.")


def _ask_git(folder: Path, *arguments: str) -> str:
    command: Sequence[str] = ["git", "-C", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""
