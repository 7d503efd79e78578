"""How results look in a terminal."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from flows.harmless_text import make_harmless

console = Console()
WIDTH_OF_A_PIPE = 1000
"""Characters; rich takes 80 otherwise and breaks words."""


def say(text: str) -> None:
    """Prints a line as it is: no wrapping in pipes, no markup read from names in the data."""
    console.print(make_harmless(text), soft_wrap=True, markup=False, highlight=False)


@contextmanager
def progress_bar(what: str) -> Iterator[Progress]:
    """Shows a bar with count, elapsed and remaining time; in a pipe it shows nothing."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        progress.add_task(what, total=None)
        yield progress


def print_scores(title: str, scores: Mapping[str, float]) -> None:
    """Prints metrics as a table of name and value."""
    say(title)
    table = Table()
    table.add_column("metric")
    table.add_column("value", justify="right")
    for name, value in scores.items():
        is_count = name.startswith("num_")
        table.add_row(name, f"{value:.0f}" if is_count else f"{value:.4f}")
    print_table(table)


def print_table(table: Table) -> None:
    """Prints a table as wide as the terminal; in a pipe as wide as its words, for programs."""
    (console if console.is_terminal else Console(width=WIDTH_OF_A_PIPE)).print(table)
