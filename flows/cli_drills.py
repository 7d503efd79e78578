"""The command of `dml` that breaks sweeps; what it does is imported late, as in flows/cli.py."""

from pathlib import Path
from typing import Annotated

import typer

commands = typer.Typer()


@commands.command()
def drill(
    count: Annotated[int, typer.Option(help="How many drills.", min=1)] = 10,
    seed: Annotated[int, typer.Option(help="What faults and moments are drawn from.", min=0)] = 0,
    fault: Annotated[
        list[str] | None, typer.Option(help="Only this fault. May be repeated.")
    ] = None,
    only: Annotated[
        list[int] | None, typer.Option(help="Repeat the drill of this number. May be repeated.")
    ] = None,
    keep: Annotated[
        Path | None, typer.Option(help="Where failed drills leave their folders.")
    ] = None,
    parallel: Annotated[int, typer.Option(help="Drills at a time.", min=1)] = 1,
    json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
) -> None:
    """Break small sweeps on purpose in a temporary folder, and check that nothing is lost."""
    from flows.commands.drill import run_drill

    run_drill(
        count=count,
        seed=seed,
        faults=fault or [],
        only=only or [],
        keep=keep,
        parallel=parallel,
        as_json=json,
    )
