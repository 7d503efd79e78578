"""Refuses a command outside of a project folder, before it writes anything there."""

import os
from collections.abc import Sequence
from pathlib import Path

PARAMS = "params.yaml"
_NEEDS = frozenset(
    {
        *("ask", "baseline", "check", "clean", "compare", "disk", "export", "history", "index"),
        *("logs", "open", "plan", "prepare", "run", "schedule", "search", "serve", "stage"),
        *("studies", "submit", "train"),
    }
)
"""Commands that read the project's params.yaml or its studies."""
_ELSEWHERE = ("--params", "--experiment")
"""Options with which a command works anywhere: other parameters, or runs of other code."""


def check_project_folder(arguments: Sequence[str], folder: Path | None = None) -> None:
    """Raises NoProject where a command needs a project and the folder is none.

    Args:
        arguments: of the command line, the command first.
        folder: the current one by default.
    """
    place = Path.cwd() if folder is None else folder
    command = arguments[0] if arguments else ""
    works_anywhere = any(each.partition("=")[0] in (*_ELSEWHERE, "--help") for each in arguments)
    if command not in _NEEDS or works_anywhere:
        return
    if (place / PARAMS).is_file():
        return
    above = next((each for each in place.parents if _is_project(each)), None)
    advice = (
        f"The folder above it is one: cd {os.path.relpath(above, place)}"
        if above
        else "Change to your project's folder, or make one: dml init FOLDER"
    )
    raise NoProject(
        f"dml {command} needs a project folder, with {PARAMS} and studies/ in it. Got {place}, "
        f"which has no {PARAMS}. {advice}"
    )


def _is_project(folder: Path) -> bool:
    return (folder / PARAMS).is_file() and (folder / "studies").is_dir()


class NoProject(FileNotFoundError):
    """A command was given outside of a project folder; the message says how to make one."""
