"""Reads YAML the way people write it: 1e-4 is a number, and a key stands once."""

import re
from pathlib import Path
from typing import Any

import yaml

from dml_core.config.problems import ConfigError
from dml_core.config.yaml_limits import (
    MAX_CHARACTERS,
    MAX_DEPTH,
    MAX_WHOLE_NUMBER,
    TooMuch,
    check_node,
)

# YAML 1.1 wants a dot in a float, so PyYAML reads 1e-4 as text; this is YAML 1.2's rule.
_NUMBER = re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$")
# Half a character of UTF-16 and the zero byte can be neither printed nor part of a path.
_NO_TEXT = re.compile("[\x00\ud800-\udfff]")


class _Loader(yaml.SafeLoader):
    """SafeLoader that knows exponents and refuses a key that stands twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise TooMuch("a key must be a plain word", key_node)
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise TooMuch(f"the key {key!r} stands twice", key_node)
            seen.add(key)
        return super().construct_mapping(node, deep)

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        if isinstance(node, yaml.ScalarNode) and _NO_TEXT.search(node.value):
            raise TooMuch("it holds a character that is no text", node)
        return super().construct_scalar(node)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        try:
            number = super().construct_yaml_int(node)
        except ValueError as error:
            raise TooMuch("it is no whole number that can be read", node) from error
        if not -MAX_WHOLE_NUMBER <= number < MAX_WHOLE_NUMBER:
            raise TooMuch("a whole number must fit into 64 bits; larger ones are 1e30", node)
        return number

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        try:
            return super().construct_yaml_float(node)
        except (ValueError, OverflowError) as error:
            raise TooMuch("it is no number that can be read", node) from error


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_yaml_float)
# Added with a loop, since each first character has its own list of resolvers.
for _first in "-+.0123456789":
    # A date is text, as in YAML 1.2: no parameter is one, and Python's dates are not JSON.
    _resolvers = [
        (tag, pattern)
        for tag, pattern in _Loader.yaml_implicit_resolvers.get(_first, [])
        if not tag.endswith(":timestamp")
    ]
    _Loader.yaml_implicit_resolvers = {
        **_Loader.yaml_implicit_resolvers,
        _first: [*_resolvers, ("tag:yaml.org,2002:float", _NUMBER)],
    }


def parse_yaml(text: str, *, source: str) -> Any:
    """Returns the value that a YAML text stands for; raises ConfigError with line and column.

    Tags, cycles, and texts that stand for more than a person writes are refused.
    """
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(source, [f"has more than {MAX_CHARACTERS:,} characters. Shorten it."])
    try:
        return _load(text)
    except RecursionError as error:
        problem = f"is nested deeper than the {MAX_DEPTH} levels that are read."
        raise ConfigError(source, [problem]) from error
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        reason = getattr(error, "problem", None) or str(error) or type(error).__name__
        raise ConfigError(source, [f"is not valid YAML{place}: {reason}."]) from error


def _load(text: str) -> Any:
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        check_node(node)
        return loader.construct_document(node)
    finally:
        loader.dispose()


def read_yaml_mapping(path: Path) -> dict[str, Any]:
    """Returns the mapping in a YAML file; an empty file is an empty mapping."""
    try:
        with path.open("rb") as file:
            # No more than can be read at all, so that a wrong file does not fill the memory.
            text = file.read(4 * MAX_CHARACTERS + 1).decode("utf-8")
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
