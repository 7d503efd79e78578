"""Reports all problems of a configuration at once, one sentence each."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from dml_core.config.section import PREFIXES

_MAX_LENGTH = 2000
_MAX_LISTED = 50
"""Problems that are listed in full; the rest are counted."""


class ConfigError(ValueError):
    """All problems of one configuration source, reported together."""

    def __init__(self, source: str, problems: Sequence[str]) -> None:
        self.source = source
        self.problems = [_cut(problem) for problem in problems]
        lines = "".join(f"\n  - {problem}" for problem in self.problems)
        super().__init__(f"{source} has {len(self.problems)} problem(s):{lines}")


def _cut(problem: str) -> str:
    # A problem quotes the value, which may be long.
    return problem if len(problem) <= _MAX_LENGTH else f"{problem[:_MAX_LENGTH]} ..."


def suggest(name: str, known: Iterable[str]) -> str:
    """Returns ` Did you mean 'x'?` for the nearest known name, or an empty text."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""


_RULES = {
    "greater_than": "> {gt}",
    "greater_than_equal": ">= {ge}",
    "less_than": "< {lt}",
    "less_than_equal": "<= {le}",
    "literal_error": "one of {expected}",
    "string_too_short": "text of at least {min_length} character(s)",
    "string_pattern_mismatch": "text that matches {pattern}",
    "float_parsing": "a number",
    "float_type": "a number",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "too_short": "a list with at least one entry",
    "too_long": "at most {max_length} entries",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "finite_number": "finite",
}


def describe(
    error: ValidationError,
    *,
    sections: dict[str, list[str]],
    known_keys: Iterable[str],
    owners: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> list[str]:
    """Returns one sentence for each validation error.

    Args:
        error: the error that pydantic raised.
        sections: for each section with kinds, the names of its kinds.
        known_keys: all dotted keys, to suggest the nearest one.
        owners: the kinds that have a dotted key, to name them for a key of another kind.
    """
    keys = list(known_keys)
    problems: list[str] = []
    details = error.errors(include_url=False)
    for detail in details[:_MAX_LISTED]:
        problems.extend(_describe_one(detail, sections, keys, owners))
    if len(details) > _MAX_LISTED:
        problems.append(f"... and {len(details) - _MAX_LISTED:,} more. Fix these first.")
    return problems


def _dotted(location: Sequence[int | str], sections: dict[str, list[str]]) -> str:
    parts = [str(part) for part in location]
    # Pydantic puts the chosen kind after the section: ("loss", "triplet", "margin").
    if len(parts) > 1 and parts[0] in sections and parts[1] in [*sections[parts[0]], *PREFIXES]:
        del parts[1]
    return ".".join(parts)


def _describe_one(
    detail: ErrorDetails,
    sections: dict[str, list[str]],
    known_keys: list[str],
    owners: Mapping[str, Sequence[str]],
) -> list[str]:
    key = _dotted(detail["loc"], sections)
    value, kind, context = detail["input"], detail["type"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        names = owners.get(key)
        hint = f" Those that have it: {', '.join(names)}." if names else suggest(key, known_keys)
        return [f"{key} is not a known parameter{_of_kind(detail)}.{hint}"]
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        return [_describe_unknown_kind(key, value, sections)]
    if kind == "value_error":
        text = str(context.get("error", detail["msg"]))
        return [f"{key} {line}.".strip() for line in text.splitlines()]
    if kind == "missing":
        return [f"{key} is missing."]
    rule = _RULES.get(kind)
    wanted = rule.format(**context) if rule else detail["msg"]
    return [f"{key} must be {wanted}. Got {_shorten(value)} ({type(value).__name__})."]


def _of_kind(detail: ErrorDetails) -> str:
    location = detail["loc"]
    return f" of {location[0]}.name={location[1]}" if len(location) > 2 else ""


def _describe_unknown_kind(key: str, value: Any, sections: dict[str, list[str]]) -> str:
    name = value.get("name") if isinstance(value, dict) else value
    names = sections.get(key, [])
    if name is None:
        return f"{key}.name is missing. Choose one of {', '.join(names)}."
    hint = suggest(str(name), names)
    return f"{key}.name must be one of {', '.join(names)}. Got {_shorten(name)}.{hint}"


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
