"""Builds a configuration from layers: params.yaml below, --set on top."""

import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from dml_core.config.pipeline import PipelineConfig
from dml_core.config.problems import ConfigError, describe
from dml_core.config.section import ChosenSection, find_kind
from dml_core.config.trial import TrialConfig
from dml_core.config.yaml_files import MAX_DEPTH, parse_yaml, read_yaml_mapping

Layer = Mapping[str, Any]


def load_params(path: Path, *, text: str | None = None) -> dict[str, Any]:
    """Returns the content of params.yaml as a flat mapping of dotted keys."""
    return flatten(read_yaml_mapping(path, text=text))


def parse_overrides(assignments: Iterable[str]) -> dict[str, Any]:
    """Returns `--set key=value` arguments as a flat mapping; values are read as YAML."""
    values: dict[str, Any] = {}
    problems = []
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            problems.append(f"{assignment!r} must have the form key=value, as in loss.alpha=16.")
            continue
        # `key=` sets an empty text, as in a shell; null is written out.
        value = parse_yaml(text, source=f"--set {key}") if text else ""
        values.update(flatten({key.strip(): value}))
    if problems:
        raise ConfigError("--set", problems)
    return values


@dataclass(frozen=True)
class ProjectConfig:
    """params.yaml with `--set` on top, divided into the trial's part and the pipeline's."""

    trial: TrialConfig
    pipeline: PipelineConfig
    trial_params: dict[str, Any]
    """Dotted keys of the trial in params.yaml: the layer below the study."""
    trial_overrides: dict[str, Any]
    """Dotted keys of the trial in `--set`: the layer above the study."""


def load_project_config(
    path: Path, assignments: Sequence[str] = (), *, text: str | None = None
) -> ProjectConfig:
    """Returns the content of params.yaml with `--set` arguments on top.

    Args:
        path: the file, named in error messages.
        assignments: `key=value` arguments on top.
        text: the content, if it was read before; None reads the file.

    Raises:
        ConfigError: with all problems of both parts.
    """
    params, overrides = load_params(path, text=text), parse_overrides(assignments)
    source = f"{path} with --set" if overrides else str(path)
    trial_params, pipeline_params = divide_layer(params)
    trial_overrides, pipeline_overrides = divide_layer(overrides)
    problems: list[str] = []
    pipeline, trial = PipelineConfig(), TrialConfig()
    try:
        pipeline = _resolve_pipeline({**pipeline_params, **pipeline_overrides}, source)
    except ConfigError as error:
        problems += error.problems
    try:
        trial = resolve_trial_config(trial_params, trial_overrides, source=source)
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(source, problems)
    return ProjectConfig(trial, pipeline, trial_params, trial_overrides)


def load_trial_config(path: Path, assignments: Sequence[str] = ()) -> TrialConfig:
    """Returns the trial's part of params.yaml with `--set` on top."""
    return load_project_config(path, assignments).trial


def divide_layer(flat: Layer) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the trial's keys and the pipeline's, which have other sections."""
    sections = PipelineConfig.model_fields
    trial = {key: value for key, value in flat.items() if key.split(".")[0] not in sections}
    return trial, {key: value for key, value in flat.items() if key not in trial}


def _resolve_pipeline(flat: Layer, source: str) -> PipelineConfig:
    known = to_flat_dict(PipelineConfig())
    try:
        return PipelineConfig.model_validate(unflatten(flat, source=source))
    except ValidationError as error:
        raise ConfigError(source, describe(error, sections={}, known_keys=known)) from error


def resolve_trial_config(*layers: Layer, source: str = "the configuration") -> TrialConfig:
    """Returns the validated merge of layers of dotted keys; later layers take precedence.

    Raises:
        ConfigError: with all problems.
    """
    # Defaults are the lowest layer, so that a single `sampler.batch_size` keeps the other values.
    merged = to_flat_dict(TrialConfig())
    for layer in layers:
        merged = _merge(merged, flatten(layer))
    kinds = {section: sorted(classes) for section, classes in chosen_sections().items()}
    try:
        return TrialConfig.model_validate(unflatten(merged, source=source))
    except ValidationError as error:
        known = _known_keys(merged)
        problems = describe(error, sections=kinds, known_keys=known, owners=_find_owners())
        raise ConfigError(source, problems) from error


def put_over(lower: Layer, upper: Layer) -> dict[str, Any]:
    """Returns the merge of two layers of dotted keys; the upper layer takes precedence.

    If the upper layer selects the kind of a section, keys of the lower layer that this kind lacks
    are dropped, such as data.images_per_class if the upper layer selects cub200.
    """
    kept = dict(lower)
    for section, classes in chosen_sections().items():
        kind = find_kind(classes, upper.get(f"{section}.name"))
        if kind is None:
            continue
        known = {f"{section}.{name}" for name in kind.model_fields}
        for key in list(kept):
            if key.startswith(f"{section}.") and ".".join(key.split(".")[:2]) not in known:
                del kept[key]
    return {**kept, **upper}


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns nested mappings as one mapping with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat.update(flatten(value, prefix=f"{name}."))
        else:
            flat[name] = value
    return flat


def unflatten(values: Mapping[str, Any], *, source: str = "the configuration") -> dict[str, Any]:
    """Returns dotted keys as nested mappings."""
    nested: dict[str, Any] = {}
    for key, value in values.items():
        *parents, last = key.split(".")
        if len(parents) >= MAX_DEPTH:
            raise ConfigError(source, [f"{key} has more than {MAX_DEPTH} parts between dots."])
        node = nested
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise ConfigError(source, [f"{key} is below {parent}, which has a value."])
        if isinstance(node.get(last), dict):
            raise ConfigError(source, [f"{key} must be a mapping of names. Got {value!r}."])
        node[last] = value
    return nested


def to_flat_dict(config: BaseModel) -> dict[str, Any]:
    """Returns all values of a configuration by dotted key, as JSON-like values."""
    return flatten(config.model_dump(mode="json"))


def chosen_sections() -> dict[str, dict[str, type[ChosenSection]]]:
    """Returns, for each section with kinds, the class of each kind by name."""
    sections: dict[str, dict[str, type[ChosenSection]]] = {}
    for section, field in TrialConfig.model_fields.items():
        classes = list(_classes_of(field.annotation))
        if len(classes) > 1:
            sections[section] = {c.model_fields["name"].default: c for c in classes}
    return sections


def _classes_of(annotation: Any) -> Iterable[type[ChosenSection]]:
    for argument in typing.get_args(annotation):
        if isinstance(argument, type) and issubclass(argument, ChosenSection):
            yield argument
        else:
            yield from _classes_of(argument)


def _merge(lower: Layer, upper: Layer) -> dict[str, Any]:
    """Merges `upper` over `lower`; selecting another kind drops the fields of the previous kind."""
    kept = dict(lower)
    for section, classes in chosen_sections().items():
        name_key = f"{section}.name"
        old, new = lower.get(name_key), upper.get(name_key)
        if name_key not in upper or new == old:
            continue
        shared = _inherited(find_kind(classes, old)) & _inherited(find_kind(classes, new))
        for key in list(kept):
            if key.startswith(f"{section}.") and key.split(".")[1] not in shared:
                del kept[key]
    return {**kept, **upper}


def _inherited(kind: type[ChosenSection] | None) -> set[str]:
    if kind is None:
        return set()
    return set(kind.model_fields) - set(kind.__annotations__)


def _find_owners() -> dict[str, list[str]]:
    """Returns the kinds that have each dotted key of a section with kinds."""
    owners: dict[str, list[str]] = {}
    for section, classes in chosen_sections().items():
        for kind, fields in classes.items():
            for name in fields.model_fields:
                owners.setdefault(f"{section}.{name}", []).append(kind)
    return owners


def _known_keys(merged: Layer) -> list[str]:
    """Returns all dotted keys of the selected kinds."""
    keys: list[str] = []
    sections = chosen_sections()
    for section, field in TrialConfig.model_fields.items():
        model: Any = type(field.default)
        if section in sections:
            model = find_kind(sections[section], merged[f"{section}.name"]) or model
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            keys.append(section)
            continue
        for name, inner in model.model_fields.items():
            keys.append(f"{section}.{name}")
            if isinstance(inner.default, BaseModel):
                keys += [f"{section}.{name}.{leaf}" for leaf in type(inner.default).model_fields]
    return keys
