"""Keyword arguments of classes and functions that are declared once, as fields of a section."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from dml_core.config.problems import ConfigError, describe
from dml_core.config.section import Section

Target = TypeVar("Target", bound=Callable[..., Any])


def takes_fields_of(*kinds: type[Section]) -> Callable[[Target], Target]:
    """Returns a decorator that shows the fields of sections in place of `**arguments`.

    `help()` and editors then list their names and defaults, which stand in the section only.
    """

    def show(target: Target) -> Target:
        shown: Any = target
        own = inspect.signature(shown.__init__ if isinstance(target, type) else shown)
        kept = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
        kept = [p for p in kept if p.name != "self"]
        shown.__signature__ = own.replace(parameters=[*kept, *_parameters_of(kinds)])
        return target

    return show


def _parameters_of(kinds: tuple[type[Section], ...]) -> list[inspect.Parameter]:
    fields = {name: field for kind in kinds for name, field in kind.model_fields.items()}
    # A section of a file has a `name`, which a class has already.
    fields.pop("name", None)
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty
            if field.is_required()
            else field.get_default(call_default_factory=True),
            annotation=field.annotation,
        )
        for name, field in fields.items()
    ]


def read_arguments(
    target: Callable[..., Any], *kinds: type[Section], given: Mapping[str, Any]
) -> dict[type[Section], Any]:
    """Returns a validated section of each kind from the keyword arguments of a call.

    Numpy scalars and tensors without dimensions count as numbers.

    Args:
        target: the class or function that was called; its name and arguments appear in messages.
        kinds: the sections; each has its own field names.
        given: the arguments; the first kind also gets those that no kind has, and rejects them.

    Raises:
        ConfigError: with all problems.
    """
    values = {name: _as_number(value) for name, value in given.items()}
    known = [name for kind in kinds for name in kind.model_fields]
    nearby = [*known, *inspect.signature(target).parameters]
    found: dict[type[Section], Any] = {}
    problems: list[str] = []
    for kind in kinds:
        stray = set(values) - set(known) if kind is kinds[0] else set()
        own = {n: value for n, value in values.items() if n in kind.model_fields or n in stray}
        try:
            found[kind] = kind.model_validate(own)
        except ValidationError as error:
            problems += describe(error, sections={}, known_keys=nearby)
    if problems:
        raise ConfigError(target.__name__, problems)
    return found


def _as_number(value: Any) -> Any:
    return value.item() if getattr(value, "ndim", None) == 0 else value
