"""The study that `dml ask` writes: readable, with its reasons, ready to be edited."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from dml_core.asking.recipes import Question, Recipe
from dml_core.asking.sizing import NUM_VALIDATIONS, Size

MARK = "# Written by: "
"""Begins the first line of a study that a question has written; the command follows."""
METRIC = "test.recall_at_1"
LABEL_METRIC = "test.ndcg_at_10"


@dataclass(frozen=True)
class AskedStudy:
    """Everything that the file of a study says."""

    command: str
    """The command that asked, with all that decides the file."""
    name: str
    question: Question
    recipe: Recipe
    found: Sequence[str]
    """What the images are, one line each."""
    data: Mapping[str, Any]
    """The keys that read the images."""
    batch: Mapping[str, Any]
    """The keys of the sampler."""
    arms: Mapping[str, Mapping[str, Any]]
    size: Size
    chosen: Mapping[str, Any]
    """Keys that a person has set, which come before all others."""
    is_continuous: bool = False

    def render(self) -> str:
        """Returns the text of the file."""
        asked = self.recipe.questions[self.question]
        if self.is_continuous:
            asked = "Which loss ranks images best by their labels?"
        size = self.size
        tries = (
            f"{size.tries} learning rates are tried for each arm"
            if size.tries > 1
            else "one learning rate for all arms, since more do not fit into the minutes"
        )
        comments = [
            f"{MARK}{self.command}",
            "# Edit it as you like; `dml run` answers it again and trains only what changed.",
            "#",
            *(f"# {line}" for line in self.found),
            "#",
            *_wrap(f"Recipe: {self.recipe.name}; {self.recipe.why}."),
            *_wrap(f"Size: {size.epochs} epochs, {tries}, {size.seeds} seeds."),
        ]
        kept = {name: dict(self.arms[name]) for name in size.arms}
        rates = list(self.recipe.rates[: size.tries])
        lines = [
            *comments,
            "",
            f"question: {_dump(f'{self.name}: {asked}')}",
            "arms:",
            *(f"  {name}: {_dump(layer)}" for name, layer in kept.items()),
            "fixed:",
            *(f"  {key}: {_dump(value)}" for key, value in self._fixed().items()),
        ]
        if size.tries > 1:
            lines += ["nuisance:", f"  optimizer.learning_rate: {_dump({'choice': rates})}",
                      "searcher: grid", "edge_rounds: 1"]  # fmt: skip
        metric = LABEL_METRIC if self.is_continuous else METRIC
        lines += [
            f"seeds: {_dump(list(range(size.seeds)))}",
            f"figure: {_dump({'kind': 'bar', 'x': 'arm', 'y': metric})}",
        ]
        return "\n".join(lines) + "\n"

    def _fixed(self) -> dict[str, Any]:
        every = max(1, self.size.epochs // NUM_VALIDATIONS)
        fixed = {
            **self.data,
            **self.recipe.fixed,
            **self.batch,
            "training.epochs": self.size.epochs,
            "training.validate_every": every,
            "training.checkpoint_every": every,
            **self.chosen,
        }
        if self.size.tries == 1:
            fixed["optimizer.learning_rate"] = self.recipe.single_rate
        return fixed


def answers_same_question(text: str, command: str) -> bool:
    """Returns whether a study's file was written for a command, also with another budget."""
    first = text.split("\n", 1)[0]
    written = first.removeprefix(MARK)
    return written != first and _without_budget(written) == _without_budget(command)


def _without_budget(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError:
        # A person has edited the line.
        return [command]
    place = words.index("--minutes") if "--minutes" in words else len(words)
    return words[:place] + words[place + 2 :]


def _dump(value: Any) -> str:
    text = yaml.safe_dump(
        value, default_flow_style=True, width=1_000_000, allow_unicode=True, sort_keys=False
    )
    # PyYAML ends a lone scalar with the end-of-document marker.
    return text.removesuffix("...\n").strip()


def _wrap(text: str) -> list[str]:
    import textwrap

    return [f"# {line}" for line in textwrap.wrap(text, 96)]
