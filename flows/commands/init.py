"""dml init: makes a project in a new folder, without a clone of this repository."""

import os
from pathlib import Path
from typing import Annotated

import typer

from flows.commands.terminal import say

commands = typer.Typer()


@commands.command()
def init(
    folder: Annotated[Path, typer.Argument(help="A new or an empty folder.")],
) -> None:
    """Make a project: parameters, studies and stages, with git and DVC initialised.

    It needs no clone of this repository: its stages depend on the version of the installed code.
    """
    from tasks.new_project import make_project

    names = make_project(folder)
    papers = [name for name in names if name != "main"]
    say(f"{folder} is a project with {len(names)} studies: main, and {len(papers)} of papers")
    say("  params.yaml   the parameters of one training and of sweeps")
    say("  studies/      a question each: dml studies lists them")
    say("  dvc.yaml      the stages; code.json has the version of the installed code")
    if Path.cwd().resolve() != folder.resolve():
        say(f"next: cd {os.path.relpath(folder)}")
    say("next: dml run main --profile smoke (a minute), then dml run main")
    say("your own images: dml ask PATH")
