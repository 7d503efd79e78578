"""dml ask: from a folder of images to an answer, in one command."""

import shlex
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.terminal import DEFAULT_PARAMS, ParamsOption, SetOption, say

if TYPE_CHECKING:
    from dml_core.asking.looking import FoundData
    from dml_core.asking.recipes import Question
    from dml_core.asking.sizing import Costs
    from dml_core.asking.study_file import AskedStudy
    from dml_core.config.loading import ProjectConfig
    from dml_core.studies.resolved import ResolvedStudy

START_SECONDS = 45.0
"""Servers, cluster, report: what a study takes beside its trials, on two cores."""
TRIAL_SECONDS = 1.5
"""Building the network, and reading the cached activations."""
MANY = 1_000
"""Training classes while their number is unknown."""
FORWARD_SHARE = 1 / 3
"""Assumption: embedding an image takes a third of a training step."""
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
    minutes: Annotated[float, typer.Option(help="The budget for everything.", min=0.1)] = 30.0,
    name: Annotated[str, typer.Option(help="Name of the study; by default that of PATH.")] = "",
    question: Annotated[str, typer.Option(help="loss, dim, batch or samples.")] = "loss",
    most_seeds: Annotated[
        int | None, typer.Option(help="Most seeds of an arm; 20 by default.", min=4)
    ] = None,
    only_write: Annotated[
        bool, typer.Option("--only-write", help="Write the study and run nothing.")
    ] = False,
    set_: SetOption = None,
    params: ParamsOption = DEFAULT_PARAMS,
) -> None:
    """Look at your images, choose a recipe, compare losses within a budget, and recommend one."""
    from dml_core.asking.looking import safe_name

    started = time.monotonic()
    chosen = name or safe_name(path)
    asked = _Asked(path, chosen, _check_question(question), minutes, tuple(set_ or ()), params)
    file = Path("studies") / f"{chosen}.yaml"
    if _is_known(file, asked.command):
        say(f"{file} is here from the same question: it resumes.")
    else:
        _write_study(file, asked, started)
    if only_write:
        say(f"next: dml plan {chosen}, or dml run {chosen} --until-decided")
        return
    _run(asked, started, most_seeds=most_seeds)


@dataclass(frozen=True)
class _Asked:
    """The question as it was asked."""

    path: str
    name: str
    question: "Question"
    minutes: float
    overrides: tuple[str, ...]
    params: Path

    @property
    def command(self) -> str:
        """The command, with all that decides the study."""
        words = ["dml", "ask", self.path, "--name", self.name, "--question", self.question]
        words += ["--minutes", f"{self.minutes:g}"]
        words += [word for each in self.overrides for word in ("--set", each)]
        # A name of a file may hold anything, also the end of a line.
        return " ".join(shlex.quote(word.replace("\n", "?")) for word in words)


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
    from dml_core.asking.study_file import read_command

    if not file.exists():
        return False
    if read_command(file.read_text(encoding="utf-8")) == command:
        return True
    raise ValueError(
        f"{file} is there already, and another question or a person wrote it. Answer it with "
        f"dml run {file.stem}, or choose another --name."
    )


def _write_study(file: Path, asked: _Asked, started: float) -> None:
    """Looks at the images, prepares them, measures this machine and writes the study."""
    from dml_core.asking.looking import look_at
    from dml_core.asking.sizing import size_study
    from dml_core.config.loading import load_project_config
    from tasks.step_progress import shown_step

    say(f"looking at {asked.path}")
    found = look_at(asked.path, name=asked.name, project=Path.cwd(), on_progress=say)
    # The split that the study uses is known once the images are prepared.
    shown = tuple(line for line in found.lines if not line.startswith("split "))
    for line in shown:
        say(f"  {line}")
    found = replace(found, lines=shown)
    project = load_project_config(asked.params, asked.overrides)
    draft = _draft(asked, found)
    study = _load(file, draft, project)
    num_classes = _prepare(study)
    draft = _draft(asked, found, num_classes=num_classes)
    study = _load(file, draft, project)
    with shown_step("measuring this machine"):
        costs = _measure(study)
    left = 60 * asked.minutes - (time.monotonic() - started)
    size = size_study(draft.recipe, list(draft.arms), costs, budget_seconds=left)
    final = replace(draft, size=size)
    # Every problem of the file is found before it is written.
    _load(file, final, project)
    file.parent.mkdir(exist_ok=True)
    partial = file.with_suffix(".partial")
    partial.write_text(final.render(), encoding="utf-8")
    partial.replace(file)
    say(
        f"{file}: {len(size.arms)} arms ({', '.join(size.arms)}), {size.num_trials} trials of "
        f"{size.epochs} epochs, {size.seeds} seeds; about {size.seconds(costs) / 60:.1f} of "
        f"{asked.minutes:g} minutes, the rest is for more seeds"
    )


def _draft(asked: _Asked, found: "FoundData", *, num_classes: int = MANY) -> "AskedStudy":
    """Returns the study before its size is known; a training set has so many classes."""
    from dml_core.asking.recipes import (
        choose_recipe,
        choose_size_px,
        list_arms,
        make_batch,
        make_label_batch,
    )
    from dml_core.asking.sizing import Size
    from dml_core.asking.study_file import AskedStudy

    median_px = found.shorter_px[1]
    recipe = choose_recipe(median_px=median_px)
    is_continuous = bool(found.continuous)
    arms = list_arms(recipe, asked.question, num_classes=num_classes, is_continuous=is_continuous)
    batch = (
        make_label_batch(recipe) if is_continuous else make_batch(recipe, num_classes=num_classes)
    )
    data = {
        "data.alias": asked.name,
        "data.color": "rgb" if found.is_color else "gray",
        "data.image_size_px": choose_size_px(recipe, median_px=median_px),
        # Class names often have an order, such as a date or a brand.
        "data.test_selection": "random",
        # With few classes, more of them are needed for training than for the test.
        "data.test_fraction": 0.5 if found.num_classes >= 40 else 0.35,
        # A split that is given, or the only one that very few classes allow, comes first.
        **found.data,
    }
    return AskedStudy(
        asked.command,
        asked.name,
        asked.question,
        recipe,
        found.lines,
        data,
        batch,
        arms,
        Size(tuple(arms), 1, 2, 2),
        is_continuous,
    )


def _load(file: Path, asked: "AskedStudy", project: "ProjectConfig") -> "ResolvedStudy":
    from dml_core.studies.loading import load_study

    return load_study(file, project, text=asked.render())


def _prepare(study: "ResolvedStudy") -> int:
    """Packs the images and returns the number of training classes."""
    from dml_core.data.duplicates import describe_duplicates
    from dml_core.data.prepare import prepare_dataset
    from dml_core.data.prepared import open_development
    from dml_core.data.sources.registry import list_images
    from tasks.guardian import guarded_folder
    from tasks.step_progress import shown_step

    config = study.arm_config(study.arms[0].name).data
    # The processes of a pool would outlive a killed command.
    guarded_folder()
    with shown_step(f"preparing {config.folder_name}") as progress:
        info = prepare_dataset(list_images(config), config, on_progress=progress.count)
    train = open_development(config).train
    say(
        f"prepared {config.prepared_path}: {train.num_classes:,} classes to train, "
        f"{info.num_development_classes - train.num_classes:,} to validate, "
        f"{info.num_test_classes:,} for the test"
    )
    for line in describe_duplicates(info.duplicates):
        say(f"  {line}")
    if info.num_refused:
        say(f"  {info.num_refused:,} images were refused; refused.csv there has the reasons")
    return train.num_classes


def _measure(study: "ResolvedStudy") -> "Costs":
    """Returns what an epoch and an evaluation take, from a few steps of the first arm."""
    from dml_core.asking.sizing import Costs
    from dml_core.data.parallel import count_cores
    from dml_core.data.prepared import open_development
    from dml_core.data.prepared_info import load_info
    from dml_core.measures.step_cost import measure_trial

    config = study.arm_config(study.arms[0].name)
    data = open_development(config.data)
    cost = measure_trial(config, data)
    num_test = load_info(config.data.prepared_path).num_test_images
    winner = FORWARD_SHARE * cost.step * num_test / config.sampler.batch_size
    return Costs(
        cost.step,
        cost.steps_per_epoch,
        cost.validation,
        winner,
        TRIAL_SECONDS,
        START_SECONDS,
        max(1, count_cores()),
    )


def _run(asked: _Asked, started: float, *, most_seeds: int | None) -> None:
    from flows.commands.run import open_pipeline, print_answer
    from tasks.study import StudyRequest

    ablation = open_pipeline()
    left = asked.minutes - (time.monotonic() - started) / 60
    request = StudyRequest(study=asked.name, params=str(asked.params), overrides=asked.overrides)
    (answer,) = ablation(
        studies=[asked.name],
        params=str(asked.params),
        overrides=list(asked.overrides),
        until_decided=True,
        minutes=max(0.0, left),
        **({} if most_seeds is None else {"most_seeds": most_seeds}),
    )
    print_answer(answer, request)
    spent = (time.monotonic() - started) / 60
    say(f"done in {spent:.1f} of {asked.minutes:g} minutes")
    say("next:")
    for command, effect in (
        (f"dml open {asked.name}", "the report"),
        (f"dml export {asked.name}", "the model, to take away"),
        (f"dml index {asked.name} FOLDER && dml search {asked.name} PICTURE", "search with it"),
    ):
        say(f"  {command:56s} # {effect}")
