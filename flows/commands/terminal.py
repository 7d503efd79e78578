"""The terminal: options that several commands share, and how results are printed."""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tasks.secrets import redact

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

ParamsOption = Annotated[
    Path, typer.Option("--params", help="YAML file with the parameters.", metavar="FILE")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change a parameter: --set loss.alpha=16. Repeatable."),
]
ProfileOption = Annotated[
    str | None, typer.Option(help="Another size of the study, such as smoke.")
]
SplitOption = Annotated[str, typer.Option(help="test or validation.")]
StudyArgument = Annotated[str, typer.Argument(help="Name of a study, as in studies/NAME.yaml.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
JsonLinesOption = Annotated[bool, typer.Option("--json", help="Print JSON lines.")]
AddressOption = Annotated[
    str,
    typer.Option(
        help="Dashboard of a Ray cluster's head, as in http://head:8265.",
        envvar="RAY_API_SERVER_ADDRESS",
    ),
]
DEFAULT_PARAMS = Path("params.yaml")
PIPE_WIDTH = 1000
"""Characters; rich assumes 80 otherwise and breaks words."""
# Codes that move the cursor, clear the screen or change the writing direction; not newline and tab.
_CONTROL_CODES = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def check_address(address: str) -> str:
    """Returns the address of a cluster; raises ValueError if none was given."""
    if not address:
        raise ValueError(
            "--address must name the cluster, as in --address http://head:8265; "
            "RAY_API_SERVER_ADDRESS in the environment does so for all commands."
        )
    return address


@cache
def console() -> "Console":
    """Returns the console of this process."""
    # rich takes a tenth of a second to import, which `dml --help` need not wait for.
    from rich.console import Console

    return Console()


def make_harmless(text: str) -> str:
    """Returns a text without secrets, and with the control codes of terminals spelled out.

    Names of classes and files come from data, and a terminal would execute the codes in them.
    """
    return _CONTROL_CODES.sub(lambda found: repr(found[0])[1:-1], redact(text))


def say(text: str) -> None:
    """Prints a line without wrapping it and without markup, which names in the data may contain."""
    console().print(make_harmless(text), soft_wrap=True, markup=False, highlight=False)


def print_scores(title: str, scores: Mapping[str, float]) -> None:
    """Prints metrics as a table of name and value."""
    from rich.table import Table

    say(title)
    table = Table()
    table.add_column("metric")
    table.add_column("value", justify="right")
    for name, value in scores.items():
        is_count = name.startswith("num_")
        table.add_row(name, f"{value:.0f}" if is_count else f"{value:.4f}")
    print_table(table)


def print_table(table: "Table") -> None:
    """Prints a table as wide as the terminal; in a pipe as wide as its words, for programs."""
    from rich.console import Console

    (console() if console().is_terminal else Console(width=PIPE_WIDTH)).print(table)
