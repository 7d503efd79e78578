"""dml open: the report of a study, and its pages in MLflow and Prefect."""

import os
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.terminal import (
    DEFAULT_PARAMS,
    ParamsOption,
    ProfileOption,
    SetOption,
    StudyArgument,
    say,
)

if TYPE_CHECKING:
    from flows.servers.pages import StudyPage

_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
"""Variables of which one is set where a browser can open a window."""
commands = typer.Typer()


@commands.command("open")
def open_study(
    study: StudyArgument,
    params: ParamsOption = DEFAULT_PARAMS,
    set_: SetOption = None,
    profile: ProfileOption = None,
    only_print: Annotated[
        bool, typer.Option("--print", help="Print the addresses and open nothing.")
    ] = False,
) -> None:
    """Open a study's report and, with servers up, its pages in MLflow and Prefect."""
    from flows.servers.access import USER, password_file
    from flows.servers.pages import list_pages
    from tasks.report_page.answer import FILE_NAME, read_answer_file
    from tasks.report_page.tables import make_command
    from tasks.study import StudyRequest, load_context

    request = StudyRequest(
        study=study, profile=profile, params=str(params), overrides=tuple(set_ or ())
    )
    folder = load_context(request).report_folder
    if not (folder / FILE_NAME).is_file():
        raise FileNotFoundError(
            f"study {request.folder_name} has no report in {folder}. Run: {make_command(request)}"
        )
    answer = read_answer_file(folder)
    pages = list_pages(
        folder / "index.html", answer.compare_url, study=request.folder_name, folder=Path.cwd()
    )
    for page in pages:
        say(f"{f'{page.title}:':9}{page.address or page.advice}")
    if any(page.address.startswith("http") for page in pages) and password_file(Path()).exists():
        say(f"sign in as {USER}; the password is in {os.path.relpath(password_file(Path()))}")
    if not only_print and not open_pages(pages):
        say("no browser can be opened here; copy an address, or open the report's file elsewhere")


def open_pages(pages: "Sequence[StudyPage]") -> bool:
    """Opens pages in the user's browser; returns False where there is none."""
    # Without a display Python would start a browser for terminals, which takes over this one.
    if sys.platform.startswith("linux") and not any(os.environ.get(name) for name in _DISPLAYS):
        return False
    addresses = [page.opened or page.address for page in pages if page.address]
    return all([webbrowser.open_new_tab(address) for address in addresses])
