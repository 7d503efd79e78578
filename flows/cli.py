"""The `dml` command: each command reads its arguments and calls one function.

Heavy libraries are imported inside the commands, so that `dml --help` answers at once.
"""

import logging
from pathlib import Path
from typing import Annotated

import typer

from flows.cli_data import data_app
from flows.cli_drills import commands as drill_commands
from flows.cli_options import DEFAULT_PARAMS, ParamsOption, SetOption
from flows.cli_servers import commands as server_commands
from flows.cli_studies import commands as study_commands
from flows.harmless_text import make_harmless
from flows.interrupts import stopped_by_signals
from tasks.garbage import search_garbage_seldom
from tasks.redaction import redact_logs

app = typer.Typer(
    name="dml",
    help="Ablations for deep metric learning: ask a question, get an answer with intervals.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    epilog="Examples: dml run main; dml train --set loss.name=triplet; dml up",
)


@app.command()
def prepare(
    params: ParamsOption = DEFAULT_PARAMS,
    set_: SetOption = None,
    workers: Annotated[int, typer.Option(help="Processes; 0 takes all cores.", min=0)] = 0,
) -> None:
    """Pack a dataset for training: read, check, resize, split, hash."""
    from flows.commands.prepare import run_prepare

    run_prepare(params, set_ or [], workers=workers)


@app.command()
def train(
    params: ParamsOption = DEFAULT_PARAMS,
    set_: SetOption = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder of the run; by default named by its parameters.")
    ] = None,
) -> None:
    """Train one model; the same command again goes on where it stopped."""
    from flows.commands.train import run_train

    run_train(params, set_ or [], output=output)


@app.command()
def evaluate(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint file, or a run's folder.")],
    set_: SetOption = None,
    split: Annotated[str, typer.Option(help="test or validation.")] = "test",
    output: Annotated[
        Path | None, typer.Option(help="JSON file to write; by default beside the checkpoint.")
    ] = None,
) -> None:
    """Judge a trained model on the test classes; print a table and write JSON."""
    from flows.commands.evaluate import run_evaluate

    run_evaluate(checkpoint, set_ or [], split=split, output=output)


@app.command()
def baseline(
    params: ParamsOption = DEFAULT_PARAMS,
    set_: SetOption = None,
    of: Annotated[
        str, typer.Option(help="pixels, or features: the network's before training.")
    ] = "pixels",
    split: Annotated[str, typer.Option(help="test or validation.")] = "validation",
) -> None:
    """Judge what needs no training: the scores that a model must beat."""
    from flows.commands.baseline import run_baseline

    run_baseline(params, set_ or [], of=of, split=split)


@app.command()
def losses() -> None:
    """List the losses with their knobs, ranges and defaults."""
    from flows.commands.losses import run_losses

    run_losses()


_MISTAKES = (
    ValueError,
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
)
"""What a user can mend: told in a line, without a traceback."""

app.add_typer(data_app)
app.add_typer(study_commands)
app.add_typer(server_commands)
app.add_typer(drill_commands)


def main() -> None:
    """Runs the command line; a mistake of the user's ends in a message, not in a traceback."""
    search_garbage_seldom()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("dml_core").setLevel(logging.INFO)
    redact_logs()
    try:
        with stopped_by_signals():
            app()
    except _MISTAKES as error:
        typer.echo(make_harmless(f"dml: {error}"), err=True)
        raise SystemExit(2) from error
