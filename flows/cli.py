"""The `dml` command line: collects the commands of flows/commands and runs one of them."""

import importlib
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import typer

from flows.commands import (
    ask,
    compare,
    data,
    disk,
    doctor,
    evaluate,
    explain,
    export,
    history,
    init,
    logs,
    plan,
    prepare,
    run,
    schedule,
    search,
    servers,
    studies,
    submit,
    train,
)
from flows.commands import open as open_pages
from flows.commands.terminal import make_harmless
from flows.help import GroupedCommands, VersionOption, add_groups
from flows.interrupts import MISTAKES, stopped_by_signals
from flows.project_folder import check_project_folder
from tasks.process import allow_restarts, collect_garbage_rarely
from tasks.secrets import redact_logs
from tasks.sources import choose_tree, hold_sources, imported_tree, is_pinned, pin_sources, use_tree

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_PINNED = ("ask", "baseline", "evaluate", "prepare", "run", "stage", "train")
"""Commands that compute: they use pinned sources, so that edits in the folder do not reach them."""

app = typer.Typer(
    name="dml",
    cls=GroupedCommands,
    help="Ablations for deep metric learning: ask a question, get an answer with intervals.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    epilog="Examples: dml ask ~/photos; dml run main; dml train --set loss.name=triplet; dml up",
)
# In the order of `dml --help`.
add_groups(
    app,
    {
        "Answer a question": (ask, run, open_pages, plan, studies, compare, history, logs),
        "Take a model away": (export, search),
        "Train one model": (prepare, train, evaluate, explain),
        "Project and data": (init, data, disk),
        "Servers and machine": (servers, schedule, submit, doctor),
    },
)


@app.callback()
def options(version: VersionOption = False) -> None:
    """Takes the options that come before a command."""


def main() -> None:
    """Runs the command line; a mistake of the user ends in a message without a traceback."""
    with _reported_mistakes():
        check_project_folder(sys.argv[1:])
        is_elsewhere = _use_sources(sys.argv[1:])
    if is_elsewhere:
        importlib.import_module("flows.cli").main()
        return
    # Only now, so that a restarted command uses the sources of its first start.
    allow_restarts()
    collect_garbage_rarely()
    _keep_loopback_off_proxies()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    for name in ("dml_core", "tasks.looks"):
        logging.getLogger(name).setLevel(logging.INFO)
    redact_logs()
    with _reported_mistakes(), stopped_by_signals():
        _sign_in_by_files()
        app()


def _use_sources(arguments: Sequence[str]) -> bool:
    """Chooses the sources of a command; returns whether this process must import them anew."""
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


def _sign_in_by_files() -> None:
    """Signs in to a team's servers, where files with the passwords are named."""
    if any(name.endswith(("_AUTH_STRING_FILE", "_PASSWORD_FILE")) for name in os.environ):
        from flows.servers.access import sign_in_by_files

        sign_in_by_files()


@contextmanager
def _reported_mistakes() -> Iterator[None]:
    try:
        yield
    except MISTAKES as error:
        typer.echo(make_harmless(f"dml: {error}"), err=True)
        raise SystemExit(2) from error
