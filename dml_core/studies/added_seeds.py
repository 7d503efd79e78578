"""Seeds that `dml run --until-decided` adds to a study, look by look.

They are in a file beside the study, `studies/NAME.seeds.json`, so that DVC and every later run know
them. The sizes of all looks are fixed before the first one: each look is judged at a level that
holds the error rate over all of them.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Self

from pydantic import Field, ValidationError, model_validator

from dml_core.config.problems import ConfigError, describe
from dml_core.config.section import Section
from dml_core.studies.definition import MAX_LOOKS, MAX_SEEDS, SEARCH_SEED, Name, Seed

PLANNED_LOOKS = 4
"""Looks from the seeds of a study to the most seeds."""


class AddedSeeds(Section):
    """The looks of a study and the seeds that they have added; empty without looks."""

    sizes: tuple[int, ...] = Field(default=(), max_length=MAX_LOOKS)
    """Seeds an arm at each look, the first included; the later ones may never happen."""
    seeds: dict[Name, tuple[Seed, ...]] = Field(default_factory=dict)
    """By arm, the seeds beyond those of the study file."""

    @model_validator(mode="after")
    def check_sizes_grow(self) -> Self:
        """Refuses looks that do not grow."""
        pairs = zip(self.sizes, self.sizes[1:], strict=False)
        if any(later <= earlier for earlier, later in pairs):
            raise ValueError(f"sizes must grow from look to look. Got {list(self.sizes)}")
        return self

    @property
    def looks(self) -> int:
        """How often the results are judged in all."""
        return max(1, len(self.sizes))

    def plan(self, start: int, most: int) -> "AddedSeeds":
        """Returns the same seeds with looks up to `most` seeds an arm.

        Args:
            start: seeds an arm that has the most now.
            most: seeds an arm at the last look.

        Raises:
            ValueError: when all looks of a study are used up.
        """
        if self.sizes and self.sizes[-1] >= most:
            return self
        # The first look is the one at the seeds of the study file.
        done = [size for size in self.sizes if size <= start] or [start]
        steps = min(PLANNED_LOOKS - 1, MAX_LOOKS - len(done), most - start)
        if steps < 1 and most > start:
            raise ValueError(
                f"a study can be judged {MAX_LOOKS} times, and this one has been. List more seeds "
                "in its file instead."
            )
        factor = most / start
        sizes = [round(start * factor ** (step / steps)) for step in range(1, steps + 1)]
        return self.model_copy(update={"sizes": tuple(dict.fromkeys([*done, *sizes]))})

    def grow(
        self, arms: Collection[str], *, listed: Sequence[int], counts: Mapping[str, int], most: int
    ) -> "AddedSeeds | None":
        """Returns the seeds of the next look; None after the last one.

        Args:
            arms: those that get more seeds.
            listed: the seeds of the study file.
            counts: seeds of each arm now.
            most: no arm gets more seeds than this.
        """
        size = next((size for size in self.sizes if size > max(counts.values())), most + 1)
        if size > most or not arms:
            return None
        # Every arm has the same seeds in the same order, so that shifts of a seed are shared.
        order = [*listed, *range(max(listed) + 1, max(listed) + 1 + size)][:size]
        grown = {arm: tuple(order[len(listed) :]) for arm in counts if arm in arms}
        return self.model_copy(update={"seeds": {**self.seeds, **grown}})


def read_added(path: Path, text: str) -> AddedSeeds:
    """Returns the content of a seeds file; an empty text has none.

    Raises:
        ConfigError: where it is damaged.
    """
    if not text:
        return AddedSeeds()
    advice = f"Restore it, or remove it, and its seeds are not used: git checkout -- {path}"
    try:
        return AddedSeeds.model_validate(json.loads(text))
    except json.JSONDecodeError as error:
        raise ConfigError(str(path), [f"must be JSON: {error}. {advice}"]) from error
    except ValidationError as error:
        found = describe(error, sections={}, known_keys=list(AddedSeeds.model_fields))
        raise ConfigError(str(path), [*found, advice]) from error


def render_added(added: AddedSeeds) -> str:
    """Returns the content of a seeds file."""
    return json.dumps(added.model_dump(mode="json"), indent=2) + "\n"


def check_most_seeds(most: int, start: int) -> None:
    """Raises ValueError where looks cannot reach this number of seeds."""
    if not start < most <= min(MAX_SEEDS, SEARCH_SEED):
        raise ValueError(
            f"--most-seeds must be above {start}, the seeds that an arm has now, and at most "
            f"{MAX_SEEDS:,}. Got {most}."
        )
