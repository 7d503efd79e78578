"""dml logs: the events of a study's runs, and the output of a submitted one."""

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from flows.commands.terminal import (
    DEFAULT_PARAMS,
    JsonLinesOption,
    ParamsOption,
    ProfileOption,
    say,
)

_SECONDS_BETWEEN_READS = 0.5
_SECONDS_UNTIL_KNOWN = 30.0
"""Ray knows how a job ended a moment after its output has."""
commands = typer.Typer()


@commands.command()
def logs(
    study: Annotated[str, typer.Argument(help="Name of a study.")],
    trial: Annotated[
        str | None, typer.Argument(help="Only this trial, such as triplet-seed0.")
    ] = None,
    params: ParamsOption = DEFAULT_PARAMS,
    profile: ProfileOption = None,
    all_: Annotated[bool, typer.Option("--all", help="Every run that is kept.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the log until the run ends.")
    ] = False,
    address: Annotated[
        str, typer.Option(help="Of a run handed over with dml submit: the cluster's dashboard.")
    ] = "",
    as_json: JsonLinesOption = False,
) -> None:
    """Show the events of the newest run of a study: stages, trials, nodes, epochs, errors.

    With --address, show what a run prints that was handed over with dml submit.
    """
    if address:
        _show_submitted(study, address=address, follow=follow)
        return
    from tasks.run_log import describe_line, list_logs
    from tasks.study import StudyRequest, load_context

    request = StudyRequest(study=study, profile=profile, params=str(params))
    folder = load_context(request).working_folder
    paths = list_logs(folder)
    if not paths:
        raise ValueError(f"study {study} has no log in {folder}. Run it first: dml run {study}")
    chosen = paths if all_ else paths[-1:]
    found = False
    for line in _follow(chosen[-1]) if follow else _read_all(chosen):
        if trial is None or line.get("trial") == trial:
            found = True
            say(json.dumps(line, ensure_ascii=False) if as_json else describe_line(line))
    if trial is not None and not found:
        known = sorted({str(line["trial"]) for line in _read_all(chosen) if "trial" in line})
        listed = ", ".join(known[:20]) + (", ..." if len(known) > 20 else "")
        raise ValueError(
            f"the log has no trial {trial!r}. Its trials: {listed or 'none'}. "
            "For older runs too: --all"
        )


def _show_submitted(study: str, *, address: str, follow: bool) -> None:
    """Prints the output of a submitted run; ends with 1 if the run has failed."""
    from tasks.submission import JobClient

    client = JobClient(address)
    run = client.find(study)
    if follow:
        client.follow_log(run.job, _print_text)
        run = client.wait(run.job, lambda run: run.has_ended, seconds=_SECONDS_UNTIL_KNOWN)
    else:
        _print_text(client.read_log(run.job))
    say(f"{run.job}: {run.status.lower()}")
    if run.status == "FAILED":
        raise SystemExit(1)


def _print_text(text: str) -> None:
    for line in text.splitlines():
        say(line)


def _read_all(paths: list[Path]) -> Iterator[Mapping[str, Any]]:
    from tasks.run_log import read_log

    for path in paths:
        yield from read_log(path)


def _follow(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yields all lines, then new ones until the run ends."""
    shown = 0
    while True:
        lines = list(_read_all([path]))
        yield from lines[shown:]
        if lines and str(lines[-1].get("event")) in ("run ended", "run failed"):
            return
        shown = len(lines)
        time.sleep(_SECONDS_BETWEEN_READS)
