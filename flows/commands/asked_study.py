"""The study of dml ask: the images are looked at and packed, this machine is measured."""

import shlex
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.commands.terminal import say

if TYPE_CHECKING:
    from dml_core.asking.looking import FoundData
    from dml_core.asking.recipes import Question
    from dml_core.asking.sizing import Costs
    from dml_core.asking.study_file import AskedStudy
    from dml_core.config.loading import ProjectConfig
    from dml_core.studies.resolved import ResolvedStudy
    from tasks.study import StudyRequest

START_SECONDS = 20.0
"""Servers and cluster, on two cores."""
REPORT_SECONDS = 25.0
"""The report and the records of the stages, on two cores."""
TRIAL_SECONDS = 1.5
"""Building the network, and reading the cached activations."""
MANY = 1_000
"""Training classes while their number is unknown."""
FORWARD_SHARE = 1 / 3
"""Assumption: embedding an image takes a third of a training step."""
SIZED_KEYS = ("data.name", "data.alias", "data.raw", "data.table", "optimizer.learning_rate",
              "seed", "training.epochs")  # fmt: skip
"""Keys that path, name and budget decide."""


@dataclass(frozen=True)
class Asked:
    """The question as it was asked."""

    path: str
    name: str
    question: "Question"
    minutes: float
    assignments: tuple[str, ...]
    """As in `--set`."""
    params: Path

    @property
    def chosen(self) -> dict[str, Any]:
        """Values of a training that a person has set: they become a part of the study's file."""
        from dml_core.config.loading import divide_layer, parse_overrides

        return divide_layer(parse_overrides(self.assignments))[0]

    @property
    def request(self) -> "StudyRequest":
        """The study, with the values of the pipeline that a person has set."""
        from dml_core.config.loading import divide_layer, parse_overrides
        from tasks.study import StudyRequest

        overrides = tuple(
            each for each in self.assignments if divide_layer(parse_overrides([each]))[1]
        )
        return StudyRequest(study=self.name, params=str(self.params), overrides=overrides)

    @property
    def command(self) -> str:
        """The command, with all that decides the study."""
        words = ["dml", "ask", self.path, "--name", self.name, "--question", self.question]
        words += ["--minutes", f"{self.minutes:g}"]
        words += [word for each in self.assignments for word in ("--set", each)]
        # A name of a file may hold anything, also the end of a line.
        return " ".join(shlex.quote(word.replace("\n", "?")) for word in words)


@dataclass(frozen=True)
class Allowance:
    """What the minutes allow beyond the study itself."""

    most_seeds: int
    """How many seeds an arm can have."""
    reserve_seconds: float
    """What evaluation and report take."""


def write_study(file: Path, asked: Asked, started: float) -> Allowance:
    """Looks at the images, prepares them, measures this machine and writes the study."""
    from dml_core.asking.looking import look_at
    from dml_core.asking.sizing import size_study
    from dml_core.config.loading import load_project_config
    from tasks.step_progress import shown_step

    project = load_project_config(asked.params, asked.request.overrides)
    data = _check_chosen(asked)
    say(f"looking at {asked.path}")
    # The dataset of params.yaml has a folder of this name after: dml data add --name NAME --write
    is_taken = project.trial.data.folder_name == asked.name
    dataset = f"{asked.name}-asked" if is_taken else asked.name
    found = look_at(asked.path, name=dataset, project=Path.cwd(), chosen=data, on_progress=say)
    # The split that the study uses is known once the images are prepared.
    shown = tuple(line for line in found.lines if not line.startswith("split "))
    for line in shown:
        say(f"  {line}")
    found = replace(found, lines=shown)
    draft = _draft(asked, found)
    study = _load(file, draft, project)
    num_classes = _prepare(study, seconds_left=60 * asked.minutes - (time.monotonic() - started))
    draft = _draft(asked, found, num_classes=num_classes)
    study = _load(file, draft, project)
    with shown_step("measuring this machine"):
        costs = _measure(
            study, project, seconds_left=60 * asked.minutes - (time.monotonic() - started)
        )
    spent = time.monotonic() - started
    left = 60 * asked.minutes - spent
    size = size_study(
        draft.recipe, list(draft.arms), costs, budget_seconds=left, spent_seconds=spent
    )
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
    return Allowance(
        size.count_affordable(costs, budget_seconds=left), size.seconds_after_sweep(costs)
    )


def measure_reserve(asked: Asked) -> float:
    """Returns about how long evaluation and report of a study take that was written before."""
    from dml_core.asking.sizing import Size
    from tasks.step_progress import shown_step
    from tasks.study import is_prepared, load_context, read_stage_seconds

    context = load_context(asked.request)
    if evaluation := read_stage_seconds(context).get("evaluate"):
        return REPORT_SECONDS + evaluation
    study = context.study
    size = Size(tuple(arm.name for arm in study.arms), 1, 1, len(study.seeds))
    if not all(is_prepared(data) for data in context.datasets):
        return REPORT_SECONDS
    with shown_step("measuring this machine"):
        return size.seconds_after_sweep(_measure(study, context.project))


def _draft(asked: Asked, found: "FoundData", *, num_classes: int = MANY) -> "AskedStudy":
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
        # Without classes, each image is its own.
        make_label_batch(recipe, num_images=num_classes)
        if is_continuous
        else make_batch(recipe, num_classes=num_classes)
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
        asked.chosen,
        is_continuous,
    )


def _check_chosen(asked: Asked) -> dict[str, Any]:
    """Returns the keys of the section data that a person has set.

    Raises:
        ValueError: for a key that is no key, or that a question decides itself.
    """
    from dml_core.asking.recipes import PHOTOS, list_arms
    from dml_core.config.loading import resolve_trial_config

    arms = list_arms(PHOTOS, asked.question, num_classes=MANY).values()
    decided = {*SIZED_KEYS, *(key for layer in arms for key in layer)}
    for key in sorted(decided & asked.chosen.keys()):
        raise ValueError(
            f"--set {key} is not possible here: dml ask decides it. Write the study with "
            f"--only-write, and edit it."
        )
    data = {key: value for key, value in asked.chosen.items() if key.startswith("data.")}
    resolve_trial_config({"data.name": "folder"}, data, source="--set")
    return data


def _load(file: Path, asked: "AskedStudy", project: "ProjectConfig") -> "ResolvedStudy":
    from dml_core.studies.loading import load_study

    return load_study(file, project, text=asked.render())


def _prepare(study: "ResolvedStudy", *, seconds_left: float) -> int:
    """Packs the images and returns the number of training classes.

    Raises:
        BudgetTooSmall: soon, if packing alone would take more than half of the time that is left.
    """
    from dml_core.asking.sizing import PackingWatch
    from dml_core.data.duplicates import describe_duplicates
    from dml_core.data.prepare import prepare_dataset
    from dml_core.data.prepared import open_development
    from dml_core.data.sources.registry import list_images
    from tasks.guardian import guarded_folder
    from tasks.step_progress import shown_step

    config = study.arm_config(study.arms[0].name).data
    # The processes of a pool would outlive a killed command.
    guarded_folder()
    watch = PackingWatch(seconds_left)
    with shown_step(f"preparing {config.folder_name}") as progress:

        def count(done: int, total: int) -> None:
            progress.count(done, total)
            watch.count(done, total)

        info = prepare_dataset(list_images(config), config, on_progress=count)
    train = open_development(config).train
    unit = "images" if config.continuous_labels else "classes"
    say(
        f"prepared {config.prepared_path}: {train.num_classes:,} {unit} to train, "
        f"{info.num_development_classes - train.num_classes:,} to validate, "
        f"{info.num_test_classes:,} for the test"
    )
    for line in describe_duplicates(info.duplicates):
        say(f"  {line}")
    if info.num_refused:
        say(f"  {info.num_refused:,} images were refused; refused.csv there has the reasons")
    return train.num_classes


def _measure(
    study: "ResolvedStudy", project: "ProjectConfig", *, seconds_left: float = float("inf")
) -> "Costs":
    """Returns what an epoch and an evaluation take, from a few steps of the first arm.

    Raises:
        BudgetTooSmall: if the frozen part of the network alone would take too long.
    """
    from dml_core.asking.sizing import Costs, check_preparation
    from dml_core.data.prepared import open_development
    from dml_core.data.prepared_info import load_info
    from dml_core.measures.step_cost import measure_frozen, measure_trial
    from dml_core.studies.cost import count_concurrent

    config = study.arm_config(study.arms[0].name)
    data = open_development(config.data)
    frozen = measure_frozen(config, data)
    check_preparation(frozen.seconds, frozen.num_missing, budget_seconds=seconds_left)
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
        count_concurrent(project.pipeline.ray),
        # The test images pass the frozen part once, and the whole network once without training.
        REPORT_SECONDS + 2 * frozen.image * num_test + winner,
    )
