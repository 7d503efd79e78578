"""Turns a study file's content into a Study, leaving out what is malformed to see the rest."""

import copy
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from dml_core.config.problems import describe
from dml_core.studies.definition import ArmDefinition, Profile, SchedulerConfig, Study
from dml_core.studies.figures import Figure

_PLACEHOLDER = Study(question="?", arms={"arm": ArmDefinition()})


def read_definition(content: dict[str, Any]) -> tuple[Study, list[str]]:
    """Returns the study and what is wrong with its form, a sentence each.

    Where something is wrong, the study is what remains without it, so that its values can be
    checked too, and all problems be reported at once.
    """
    problems: list[str] = []
    has_lost_arms = False
    rest = copy.deepcopy(content)
    while True:
        try:
            return Study.model_validate(rest), problems
        except ValidationError as error:
            locations = [detail["loc"] for detail in error.errors(include_url=False)]
            # Where arms were malformed and left out, it is no news that none are there.
            if () not in locations or not has_lost_arms:
                problems += _describe(error)
            removed = [_leave_out(rest, location) for location in locations if location]
            # Without this a problem that cannot be left out would be met again for ever.
            if () in locations or not any(removed):
                return _PLACEHOLDER, problems
            has_lost_arms |= any(location[0] in ("arms", "grid") for location in locations)


def _describe(error: ValidationError) -> list[str]:
    found = describe(error, sections={}, known_keys=_known_keys())
    return [_clean(text) for text in found]


def _clean(text: str) -> str:
    return text.replace(".[key] must be text that matches", " must be a name that matches").replace(
        ".[key] must be", " must be"
    )


def _leave_out(content: dict[str, Any], location: Sequence[int | str]) -> bool:
    """Removes the innermost named entry that a problem's location leads to, if it is there."""
    if location[0] == "question":
        content["question"] = "?"
        return True
    node: Any = content
    owner, name = None, None
    for part in location:
        if not isinstance(node, dict) or part not in node:
            break
        owner, name, node = node, part, node[part]
    # An entry with two problems is gone when the second one is looked at.
    if owner is not None:
        del owner[name]
    return owner is not None


def _known_keys() -> list[str]:
    keys = list(Study.model_fields)
    sections: dict[str, type[BaseModel]] = {"figure": Figure, "scheduler": SchedulerConfig}
    for section, model in sections.items():
        keys += [f"{section}.{name}" for name in model.model_fields]
    return [*keys, *(f"profiles.smoke.{name}" for name in Profile.model_fields)]
