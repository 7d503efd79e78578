"""Every key of params.yaml and of a study file: meaning, type, range and default, as declared."""

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import CoreSchema

from dml_core.config.loading import chosen_sections
from dml_core.config.pipeline import PipelineConfig
from dml_core.config.section import Section
from dml_core.config.trial import TrialConfig
from dml_core.studies.definition import Study

PARAMS_FILE, STUDY_FILE = "params.yaml", "studies/NAME.yaml"
STUDY_WORD = "study"
_LABELS = {"pml": "pml:ClassName", "python": "python:module:Name"}
"""Stands for all keys of a study file."""

_TYPES = {
    "number": "number",
    "integer": "whole number",
    "boolean": "true or false",
    "string": "text",
    "null": "null",
}
_BOUNDS = {
    "exclusiveMinimum": "> {}",
    "minimum": ">= {}",
    "exclusiveMaximum": "< {}",
    "maximum": "<= {}",
    "minLength": "at least {} character(s)",
    "pattern": "matches `{}`",
    "minItems": "at least {} entry",
    "maxItems": "at most {} entries",
}
_UNITS = {
    "seconds": "seconds",
    "px": "pixels",
    "degrees": "degrees",
    "fraction": "share from 0 to 1",
    "ratio": "share from 0 to 1",
    "epochs": "epochs",
}
"""By the last word of a key."""


@dataclass(frozen=True)
class DescribedKey:
    """A key with all that its declaration says."""

    key: str
    """Dotted; `<name>` stands for a name that the file chooses."""
    file: str
    """The file that has it: PARAMS_FILE or STUDY_FILE."""
    meaning: str
    type: str
    rule: str
    """Range, length or pattern; empty if there is none."""
    default: str
    kinds: tuple[str, ...] = ()
    """Kinds of its section that declare it so; empty if all do."""

    @property
    def unit(self) -> str:
        """Unit of the value, by the last word of the key; empty if it has none there."""
        word = self.key.rpartition(".")[2].rpartition("_")[2]
        return _UNITS.get(word, "") if "number" in self.type else ""

    @property
    def plain_key(self) -> str:
        """The key without the names that a file chooses, as it is requested."""
        return re.sub(r"<\w+>\.", "", self.key)

    def say_values(self) -> str:
        """Returns type, unit, rule and default in one line."""
        parts = [self.type, self.unit, self.rule]
        default = f"default {self.default}" if self.default else ""
        return "; ".join(filter(None, [", ".join(filter(None, parts)), default]))


@cache
def describe_keys() -> tuple[DescribedKey, ...]:
    """Returns all keys, those of params.yaml first, in the order of their files."""
    return (*_describe_params(), *_describe_model(Study, file=STUDY_FILE))


def list_sections() -> dict[str, str]:
    """Returns the meaning of each section of params.yaml, in the order of the file."""
    fields = {**TrialConfig.model_fields, **PipelineConfig.model_fields}
    return {name: _one_line(field.description) for name, field in fields.items()}


def find_keys(wanted: str) -> list[DescribedKey]:
    """Returns the keys with a name: a whole key, its beginning or its end; `study` has them all.

    Raises:
        ValueError: when there is none, with the nearest names.
    """
    keys = describe_keys()
    if wanted == STUDY_WORD:
        return [each for each in keys if each.file == STUDY_FILE]
    exact = [each for each in keys if f"{each.plain_key}.".startswith(f"{wanted}.")]
    found = exact or [each for each in keys if each.plain_key.endswith(f".{wanted}")]
    if found:
        return found
    names = list(dict.fromkeys([*(each.plain_key for each in keys), *list_sections()]))
    near = difflib.get_close_matches(wanted, names, n=3, cutoff=0.5)
    ends = {name.rpartition(".")[2]: name for name in names}
    last = wanted.rpartition(".")[2]
    near += [ends[end] for end in difflib.get_close_matches(last, ends, n=3, cutoff=0.7)]
    hint = f" Nearest: {', '.join(dict.fromkeys(near))}." if near else ""
    raise ValueError(
        f"{wanted!r} is not a key of {PARAMS_FILE} or of a study file.{hint} "
        "List the sections with: dml explain"
    )


def list_keys_of_kind(section: str, kind: str) -> list[DescribedKey]:
    """Returns those keys of a section that a kind has, such as the loss `triplet`."""
    own = [each for each in describe_keys() if each.key.startswith(f"{section}.")]
    return [each for each in own if not each.kinds or label_kind(kind) in each.kinds]


def label_kind(name: str) -> str:
    """Returns a kind as `DescribedKey.kinds` names it: one name stands for all of `pml:`."""
    return _LABELS.get(name.partition(":")[0], name) if ":" in name else name


def _describe_params() -> Iterator[DescribedKey]:
    kinds = chosen_sections()
    for model in (TrialConfig, PipelineConfig):
        for section, field in model.model_fields.items():
            if section in kinds:
                default = field.default.name
                yield from _describe_kinds(section, kinds[section], default=default)
            elif isinstance(field.default, Section):
                yield from _describe_model(type(field.default), prefix=f"{section}.")
            else:
                own = _read_schema(model)["properties"][section]
                yield _describe_field(section, own, file=PARAMS_FILE, is_required=False)


def _describe_kinds(
    section: str, kinds: Mapping[str, type[Section]], *, default: str
) -> Iterator[DescribedKey]:
    """Describes a section with kinds; a key that several kinds declare alike comes once."""
    name_key = f"{section}.name"
    owners: dict[str, dict[DescribedKey, list[str]]] = {name_key: {}}
    for name, kind in kinds.items():
        for each in _describe_model(kind, prefix=f"{section}."):
            if each.default == name:
                each = replace(each, default=f"as {name_key}")
            owners.setdefault(each.key, {}).setdefault(each, []).append(label_kind(name))
    del owners[name_key]
    yield DescribedKey(
        key=name_key,
        file=PARAMS_FILE,
        meaning=_one_line(TrialConfig.model_fields[section].description),
        type=f"one of {', '.join(map(label_kind, kinds))}",
        rule="",
        default=default,
    )
    # Rows of one key are adjacent.
    for alike in owners.values():
        for each, names in alike.items():
            yield replace(each, kinds=() if len(names) == len(kinds) else tuple(names))


class _Schemas(GenerateJsonSchema):
    """Shows a value that has no JSON schema as any value."""

    def handle_invalid_for_json_schema(
        self, schema: CoreSchema, error_info: str
    ) -> JsonSchemaValue:
        return {}


def _read_schema(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema(schema_generator=_Schemas)


def _describe_model(
    model: type[BaseModel], *, prefix: str = "", file: str = PARAMS_FILE
) -> list[DescribedKey]:
    schema = _read_schema(model)
    return list(_walk(schema, schema.get("$defs", {}), prefix=prefix, file=file))


def _walk(
    schema: Mapping[str, Any], definitions: Mapping[str, Any], *, prefix: str, file: str
) -> Iterator[DescribedKey]:
    """Yields the keys of a JSON schema, those inside of it after the key that holds them."""
    required = schema.get("required", ())
    for name, field in schema["properties"].items():
        key, inner = f"{prefix}{name}", list(_list_inner(field))
        # Pydantic leaves out the description of a field that equals that of its section.
        sections = [definitions[section] for section, _ in inner]
        field = {**next(({"description": s["description"]} for s in sections), {}), **field}
        yield _describe_field(key, field, file=file, is_required=name in required)
        for (_, step), section in zip(inner, sections, strict=True):
            yield from _walk(section, definitions, prefix=f"{key}.{step}", file=file)


def _list_inner(field: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields the section inside a field, and the name that the file chooses in between."""
    for option in field.get("anyOf", [field]):
        places = [(option, ""), (option.get("items"), ""), (_named_values(option), "<name>.")]
        for place, step in places:
            if isinstance(place, Mapping) and "$ref" in place:
                yield place["$ref"].rpartition("/")[2], step


def _named_values(option: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Returns the schema of the values of a mapping, whose names may have to match a pattern."""
    found = next(
        iter(option.get("patternProperties", {}).values()), option.get("additionalProperties")
    )
    return found if isinstance(found, Mapping) else None


def _describe_field(
    key: str, field: Mapping[str, Any], *, file: str, is_required: bool
) -> DescribedKey:
    options = field.get("anyOf", [field])
    rules = [rule for option in options if (rule := _say_rule(option))]
    return DescribedKey(
        key=key,
        file=file,
        meaning=_one_line(field.get("description")),
        type=" or ".join(dict.fromkeys(_say_type(option) for option in options)),
        rule=" or ".join(rules),
        default="required" if is_required else _say_default(field),
    )


def _say_type(option: Mapping[str, Any]) -> str:
    if "$ref" in option:
        return "section"
    if "const" in option or "enum" in option:
        names = option.get("enum", [option.get("const")])
        return f"one of {', '.join(map(str, names))}"
    if option.get("type") == "array":
        return f"list of {_say_many(option.get('items', {}))}"
    if option.get("type") == "object":
        inner = _named_values(option)
        return "mapping" if inner is None else f"mapping of names to {_say_many(inner)}"
    return _TYPES.get(str(option.get("type")), "any value")


def _say_many(option: Mapping[str, Any]) -> str:
    one = _say_type(option)
    return f"{one}s" if one in ("number", "whole number", "text", "section", "any value") else one


def _say_rule(option: Mapping[str, Any]) -> str:
    bounds = [text.format(_say_number(option[k])) for k, text in _BOUNDS.items() if k in option]
    items = option.get("items")
    if isinstance(items, Mapping) and (inner := _say_rule(items)):
        bounds.append(f"each {inner}")
    return " and ".join(bounds)


def _say_number(value: object) -> str:
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else f"{value:.6g}"
    return str(value)


def _say_default(field: Mapping[str, Any]) -> str:
    value = field.get("default", {})
    if isinstance(value, Mapping):
        return "" if any(True for _ in _list_inner(field)) else "empty"
    return say_value(value)


def say_value(value: object) -> str:
    """Returns a value as it is written in a file."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(say_value, value))}]"
    return str(value) if value != "" else '""'


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())
