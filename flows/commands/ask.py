"""dml ask: from a folder of images to an answer, in one command."""

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.asked_study import Allowance, Asked, measure_reserve, write_study
from flows.commands.terminal import DEFAULT_PARAMS, ParamsOption, SetOption, say

if TYPE_CHECKING:
    from dml_core.asking.recipes import Question

A_YEAR = 365 * 24 * 60.0
"""In minutes; more, and a number that is none, are mistakes."""
commands = typer.Typer()


@commands.command()
def ask(
    path: Annotated[
        str,
        typer.Argument(
            help="Class folders, an archive of them, a CSV or Parquet table, WebDataset shards, or "
            "a Hugging Face dataset on disk or as hf:owner/name."
        ),
    ],
    minutes: Annotated[
        float,
        typer.Option(
            help="The limit for everything, with the best answer so far; the same command resumes.",
            min=0.1,
            max=A_YEAR,
        ),
    ] = 30.0,
    name: Annotated[str, typer.Option(help="Name of the study; by default that of PATH.")] = "",
    question: Annotated[str, typer.Option(help="loss, dim, batch or samples.")] = "loss",
    most_seeds: Annotated[
        int | None,
        typer.Option(help="Most seeds of an arm; what fits by default, and at most 20.", min=4),
    ] = None,
    only_write: Annotated[
        bool, typer.Option("--only-write", help="Write the study and run nothing.")
    ] = False,
    set_: SetOption = None,
    params: ParamsOption = DEFAULT_PARAMS,
) -> None:
    """Look at your images, choose a recipe, compare losses within a budget, and recommend one."""
    from dml_core.asking.looking import safe_name
    from tasks.budget import MOST_SEEDS
    from tasks.report_page.tables import make_command

    started = time.monotonic()
    chosen_name = _check_name(name) if name else safe_name(path)
    asked = Asked(path, chosen_name, _check_question(question), minutes, tuple(set_ or ()), params)
    file = Path("studies") / f"{chosen_name}.yaml"
    if _is_known(file, asked.command):
        say(
            f"{file} is here from the same question: it resumes, with {minutes:g} minutes. For a "
            "study of another size, remove that file or choose another --name."
        )
        allowance = Allowance(MOST_SEEDS, 0.0 if only_write else measure_reserve(asked))
    else:
        allowance = write_study(file, asked, started)
    if only_write:
        seeds = make_command(asked.request, "run", "--until-decided")
        say(f"next: {make_command(asked.request, 'plan')}, or {seeds}")
        return
    most_seeds = most_seeds or min(MOST_SEEDS, allowance.most_seeds)
    _run(asked, started, replace(allowance, most_seeds=most_seeds))


def _check_name(name: str) -> str:
    """Returns the name of a study; raises ValueError for one that files cannot have."""
    from dml_core.asking.looking import safe_name
    from dml_core.config.data import ALIAS_PATTERN
    from dml_core.studies.definition import NAME_PATTERN

    if re.fullmatch(NAME_PATTERN, name) and re.fullmatch(ALIAS_PATTERN, name):
        return name
    raise ValueError(
        "--name must begin with a letter or digit and have up to 80 letters, digits, dots, dashes "
        f"and underscores, because it names files. Got {name!r}. Perhaps: --name {safe_name(name)}"
    )


def _check_question(question: str) -> "Question":
    from dml_core.asking.recipes import PHOTOS
    from dml_core.config.problems import suggest

    for known in PHOTOS.questions:
        if known == question:
            return known
    raise ValueError(
        f"--question must be one of {', '.join(PHOTOS.questions)}. Got {question!r}."
        f"{suggest(question, PHOTOS.questions)}"
    )


def _is_known(file: Path, command: str) -> bool:
    """Returns whether the same question has written the study before.

    Raises:
        ValueError: where the file is another one.
    """
    from dml_core.asking.study_file import answers_same_question

    if not file.exists():
        return False
    if answers_same_question(file.read_text(encoding="utf-8"), command):
        return True
    raise ValueError(
        f"{file} is there already, and another question or a person wrote it. Answer it with "
        f"dml run {file.stem}, or choose another --name."
    )


def _run(asked: Asked, started: float, allowance: Allowance) -> None:
    from flows.commands.run import open_pipeline, print_answer
    from tasks.report_page.tables import make_command

    ablation = open_pipeline()
    left = asked.minutes - (time.monotonic() - started) / 60
    request = asked.request
    (answer,) = ablation(
        studies=[asked.name],
        params=str(asked.params),
        overrides=list(request.overrides),
        until_decided=True,
        minutes=max(0.0, left),
        most_seeds=allowance.most_seeds,
        reserve_seconds=allowance.reserve_seconds,
    )
    print_answer(answer, request)
    spent = (time.monotonic() - started) / 60
    say(f"done in {spent:.1f} of {asked.minutes:g} minutes")
    say("next:")
    index, search = (
        make_command(request, "index", "FOLDER"),
        make_command(request, "search", "PICTURE"),
    )
    for command, effect in (
        (make_command(request, "open"), "the report"),
        (make_command(request, "export"), "the model, to take away"),
        (f"{index} && {search}", "search with it"),
    ):
        say(f"  {command:56s} # {effect}")
