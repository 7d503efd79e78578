"""Reads and writes YAML, with limits that reject malicious files."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from dml_core.config.problems import ConfigError

MAX_CHARACTERS = 1 << 20
"""Per file; the largest study has one hundredth of this."""
MAX_VALUES = 20_000
"""Values and keys per file; those behind an alias count at every use."""
MAX_DEPTH = 20
"""Nesting levels of mappings and lists."""
MAX_KEY_LENGTH = 200
MAX_WHOLE_NUMBER = 2**63
"""Integers must fit into 64 bits."""

_PLAIN_TAGS = frozenset(
    f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "seq", "map")
)


class UnsupportedYaml(yaml.MarkedYAMLError):
    """Valid YAML that exceeds a limit or uses an unsupported feature; see `problem`."""

    def __init__(self, problem: str, node: yaml.Node) -> None:
        super().__init__(problem=problem, problem_mark=node.start_mark)


def check_node(root: yaml.Node) -> None:
    """Raises UnsupportedYaml for tags, cycles, deep nesting and too many values behind aliases.

    A few lines with aliases can expand to billions of values ("billion laughs"). Each node is
    counted once, and its count is added at every use.
    """
    _, height = _weigh(root, {})
    if height > MAX_DEPTH:
        raise UnsupportedYaml(f"values may be nested at most {MAX_DEPTH} levels deep", root)


def _weigh(node: yaml.Node, known: dict[int, tuple[int, int] | None]) -> tuple[int, int]:
    """Returns the number of values that a node expands to, and its number of levels."""
    if id(node) in known:
        found = known[id(node)]
        if found is None:
            raise UnsupportedYaml("a value contains itself", node)
        return found
    if node.tag not in _PLAIN_TAGS:
        raise UnsupportedYaml(f"the tag {node.tag!r} is not supported; remove it", node)
    # None marks a node in progress: reaching it again means that it contains itself.
    known[id(node)] = None
    inner = [_weigh(child, known) for child in _children(node)]
    weight = 1 + sum(weight for weight, _ in inner)
    if weight > MAX_VALUES:
        raise UnsupportedYaml(f"it expands to more than {MAX_VALUES:,} values", node)
    result = weight, 1 + max((height for _, height in inner), default=0)
    known[id(node)] = result
    return result


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and len(key.value) > MAX_KEY_LENGTH:
                raise UnsupportedYaml(f"a key may have at most {MAX_KEY_LENGTH} characters", key)
        return [child for pair in node.value for child in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


# YAML 1.1 requires a dot in a float, so PyYAML reads 1e-4 as text. This is the YAML 1.2 rule.
_NUMBER = re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$")
# Lone surrogates and the null byte can be neither printed nor part of a path.
_NO_TEXT = re.compile("[\x00\ud800-\udfff]")


class _Loader(yaml.SafeLoader):
    """A SafeLoader that reads exponents and rejects duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise UnsupportedYaml("a key must be a plain word", key_node)
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise UnsupportedYaml(f"the key {key!r} occurs twice", key_node)
            seen.add(key)
        return super().construct_mapping(node, deep)

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        if isinstance(node, yaml.ScalarNode) and _NO_TEXT.search(node.value):
            raise UnsupportedYaml("it contains a character that is not text", node)
        return super().construct_scalar(node)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        try:
            number = super().construct_yaml_int(node)
        except ValueError as error:
            raise UnsupportedYaml("it is not a readable whole number", node) from error
        if not -MAX_WHOLE_NUMBER <= number < MAX_WHOLE_NUMBER:
            raise UnsupportedYaml(
                "a whole number must fit into 64 bits; write larger ones as 1e30", node
            )
        return number

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        try:
            return super().construct_yaml_float(node)
        except (ValueError, OverflowError) as error:
            raise UnsupportedYaml("it is not a readable number", node) from error


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_yaml_float)
# PyYAML keeps one list of resolvers for each first character.
for _first in "-+.0123456789":
    # A date is text, as in YAML 1.2: no parameter is a date, and dates are not JSON.
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
    """Returns the value of a YAML text; raises ConfigError with line and column.

    Tags, cycles and texts that exceed the limits above are rejected.
    """
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(source, [f"has more than {MAX_CHARACTERS:,} characters. Shorten it."])
    try:
        return _load(text)
    except RecursionError as error:
        problem = f"is nested deeper than {MAX_DEPTH} levels."
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


def read_yaml_text(path: Path) -> str:
    """Returns the text of a YAML file; raises ConfigError if it cannot be read."""
    try:
        with path.open("rb") as file:
            # Bounded, so that a wrong file does not fill the memory.
            return file.read(4 * MAX_CHARACTERS + 1).decode("utf-8")
    except FileNotFoundError as error:
        raise ConfigError(
            str(path), ["does not exist. Name another file with --params."]
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), [f"cannot be read as UTF-8 text: {error}."]) from error


def read_yaml_mapping(path: Path, *, text: str | None = None) -> dict[str, Any]:
    """Returns the mapping in a YAML file; an empty file is an empty mapping.

    Args:
        path: the file, named in error messages.
        text: the content, if it was read before; None reads the file.
    """
    value = parse_yaml(read_yaml_text(path) if text is None else text, source=str(path))
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ConfigError(str(path), [f"must be a mapping of names. Got {type(value).__name__}."])
    return value


def render_section(section: str, values: Mapping[str, Any]) -> str:
    """Returns the lines of a section of params.yaml."""
    lines = [f"{section}:"]
    for key, value in values.items():
        text = yaml.safe_dump(value, default_flow_style=True, width=1_000_000, allow_unicode=True)
        # PyYAML ends a lone scalar with the end-of-document marker.
        value_text = text.removesuffix("...\n").strip()
        lines.append(f"  {key}: {value_text}")
    return "\n".join(lines) + "\n"


def write_section(file: Path, section: str, values: Mapping[str, Any]) -> None:
    """Replaces the section of that name, or appends it to the file.

    Comments outside the section stay; those inside it are removed with the previous values.

    Raises:
        ConfigError: if the layout of the file does not allow editing it line by line.
    """
    before = file.read_text(encoding="utf-8")
    after = _replace(before, section, render_section(section, values))
    wanted = {**(parse_yaml(before, source=str(file)) or {}), section: dict(values)}
    if not _has_value(after, wanted):
        raise ConfigError(
            str(file),
            [f"the section {section} cannot be replaced automatically. Edit the file yourself."],
        )
    partial = file.with_name(f".{file.name}.partial")
    partial.write_text(after, encoding="utf-8")
    os.replace(partial, file)


def _has_value(text: str, wanted: Mapping[str, Any]) -> bool:
    try:
        return bool(parse_yaml(text, source="") == wanted)
    except ConfigError:
        return False


def _replace(text: str, section: str, block: str) -> str:
    lines = text.splitlines(keepends=True)
    starts = [number for number, line in enumerate(lines) if line.startswith(f"{section}:")]
    if not starts:
        return text + ("" if text.endswith("\n") or not text else "\n") + block
    start = end = starts[0]
    for number in range(start + 1, len(lines)):
        if lines[number].strip() and not lines[number][0].isspace():
            break
        # Blank lines belong to the section only where more of it follows.
        end = number if lines[number].strip() else end
    return "".join([*lines[:start], block, *lines[end + 1 :]])
