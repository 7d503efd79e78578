"""Finds mistakes in a schedule when it is made, and not at night when it comes due."""

import difflib
from functools import partial
from pathlib import Path

from flows.servers.schedules import check_cron
from tasks.study import STUDIES_FOLDER, StudyRequest, load_context


def check_request(study: str, *, profile: str | None, cron: str, folder: Path) -> None:
    """Raises ValueError with every problem of a study and of its time; changes no server."""
    request = StudyRequest(study=study, profile=profile)
    problems: list[str] = []
    for check in (
        partial(check_study, request, folder=folder),
        partial(check_cron, cron, folder=folder),
    ):
        try:
            check()
        except (ValueError, FileNotFoundError) as error:
            problems.append(str(error))
    if problems:
        raise ValueError("\n".join(problems))


def check_study(request: StudyRequest, *, folder: Path) -> None:
    """Raises a ValueError or FileNotFoundError when a run of the study would fail at its start."""
    check_study_exists(request.study, folder / STUDIES_FOLDER)
    load_context(request)


def check_study_exists(study: str, folder: Path) -> None:
    """Raises FileNotFoundError when a study has no file; with the nearest name there is."""
    if (folder / f"{study}.yaml").is_file():
        return
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    near = difflib.get_close_matches(study, known, n=1)
    advice = f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(known) or 'none'}."
    raise FileNotFoundError(f"there is no study {study!r} in {folder}. {advice}")
