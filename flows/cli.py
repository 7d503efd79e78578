"""The `dml` command: each command reads its arguments and calls one function.

Heavy libraries are imported inside the commands, so that `dml --help` answers at once.
"""

import importlib
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from flows.cli_data import data_app
from flows.cli_options import DEFAULT_PARAMS, ParamsOption, SetOption
from flows.cli_servers import commands as server_commands
from flows.cli_studies import commands as study_commands
from flows.harmless_text import make_harmless
from flows.interrupts import MISTAKES, stopped_by_signals
from tasks.process import allow_restarts, collect_garbage_rarely
from tasks.secrets import redact_logs
from tasks.sources import choose_tree, hold_sources, imported_tree, is_pinned, pin_sources, use_tree

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


app.add_typer(data_app)
app.add_typer(study_commands)
app.add_typer(server_commands)


_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_PINNED = ("baseline", "evaluate", "prepare", "run", "stage", "train")
"""Commands that compute: they use the sources of their start, whatever happens to the folder."""


def main() -> None:
    """Runs the command line; a mistake of the user's ends in a message, not in a traceback."""
    with _told_mistakes():
        is_elsewhere = _use_sources(sys.argv[1:])
    if is_elsewhere:
        importlib.import_module("flows.cli").main()
        return
    # Only now, so that a restarted command uses the sources of its first start.
    allow_restarts()
    collect_garbage_rarely()
    _keep_loopback_off_proxies()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("dml_core").setLevel(logging.INFO)
    redact_logs()
    with _told_mistakes(), stopped_by_signals():
        app()


def _use_sources(arguments: Sequence[str]) -> bool:
    """Chooses the sources of a command; returns whether they are others than this process has."""
    if is_pinned():
        hold_sources()
        return False
    if arguments[:1] and arguments[0] in _PINNED and "--help" not in arguments:
        pin_sources()
        return True
    if (tree := choose_tree()) != imported_tree():
        use_tree(tree)
        return True
    return False


def _keep_loopback_off_proxies() -> None:
    """Excludes loopback addresses from the proxies of the environment, for all child processes.

    A proxy does not reach this machine's own servers. The user's own exclusions stay.
    """
    excluded = [os.environ.get(name, "") for name in ("no_proxy", "NO_PROXY")]
    names = [name.strip() for text in excluded for name in text.split(",") if name.strip()]
    value = ",".join(dict.fromkeys([*names, *_LOOPBACK]))
    # Some libraries read the one, some the other.
    os.environ.update({"no_proxy": value, "NO_PROXY": value})


@contextmanager
def _told_mistakes() -> Iterator[None]:
    try:
        yield
    except MISTAKES as error:
        typer.echo(make_harmless(f"dml: {error}"), err=True)
        raise SystemExit(2) from error
