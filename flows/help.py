"""`dml --help` in groups, and `dml --version`; both answer without any heavy import."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

_OTHERS = "Others"
MAX_SENTENCE = 200
"""Characters of a command's first sentence: it is wrapped, since a cut one says too little."""


class GroupedCommands(TyperGroup):
    """A group of commands whose help lists them below titles.

    Typer does so with rich only, whose import alone takes a tenth of a second.
    """

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes the visible commands below the titles that `add_groups` gave them."""
        shown = {name: cmd for name, cmd in self.commands.items() if not cmd.hidden}
        width = max(map(len, shown), default=0)
        titles = dict.fromkeys(_find_title(command) for command in shown.values())
        for title in titles:
            rows = [
                # Padded, so that the texts of all groups begin in the same column.
                (name.ljust(width), command.get_short_help_str(MAX_SENTENCE))
                for name, command in shown.items()
                if _find_title(command) == title
            ]
            with formatter.section(title):
                formatter.write_dl(rows)


def _find_title(command: Any) -> str:
    title = getattr(command, "rich_help_panel", None)
    return title if isinstance(title, str) else _OTHERS


def add_groups(app: typer.Typer, groups: Mapping[str, Sequence[ModuleType]]) -> None:
    """Adds the commands of modules to an app, below the titles of their groups."""
    for title, modules in groups.items():
        for module in modules:
            for command in module.commands.registered_commands:
                command.rich_help_panel = title
            app.add_typer(module.commands, rich_help_panel=title)


def show_version(wanted: bool) -> None:
    """Prints the version and the folder of the sources, then ends the command."""
    if not wanted:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        number = version("dml")
    except PackageNotFoundError:
        number = "of unknown version"
    # In a clone the sources of the clone are used, whatever is installed.
    typer.echo(f"dml {number} from {Path(__file__).resolve().parents[1]}")
    raise typer.Exit


VersionOption = Annotated[
    bool,
    typer.Option(
        "--version", callback=show_version, is_eager=True, help="Print the version and end."
    ),
]
