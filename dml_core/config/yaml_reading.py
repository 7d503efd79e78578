"""Reads YAML the way people write it: 1e-4 is a number, and a key stands once."""

import re
from pathlib import Path
from typing import Any

import yaml

from dml_core.config.problems import ConfigError

# YAML 1.1 wants a dot in a float, so PyYAML reads 1e-4 as text; this is YAML 1.2's rule.
_NUMBER = re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$")


class _Loader(yaml.SafeLoader):
    """SafeLoader that knows exponents and refuses a key that stands twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, (dict, list)):
                raise yaml.constructor.ConstructorError(
                    None, None, "a key must be a plain word", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


# Added with a loop, since each first character has its own list of resolvers.
for _first in "-+.0123456789":
    _resolvers = list(_Loader.yaml_implicit_resolvers.get(_first, []))
    _Loader.yaml_implicit_resolvers = {
        **_Loader.yaml_implicit_resolvers,
        _first: [*_resolvers, ("tag:yaml.org,2002:float", _NUMBER)],
    }


def parse_yaml(text: str, *, source: str) -> Any:
    """Returns the value that a YAML text stands for; raises ConfigError with line and column."""
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        reason = getattr(error, "problem", None) or str(error) or type(error).__name__
        raise ConfigError(source, [f"is not valid YAML{place}: {reason}."]) from error


def read_yaml_mapping(path: Path) -> dict[str, Any]:
    """Returns the mapping in a YAML file; an empty file is an empty mapping."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(
            str(path), ["does not exist. Name another file with --params."]
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), [f"cannot be read as UTF-8 text: {error}."]) from error
    value = parse_yaml(text, source=str(path))
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ConfigError(str(path), [f"must be a mapping of names. Got {type(value).__name__}."])
    return value
