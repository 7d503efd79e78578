"""Replaces one section of a params.yaml and leaves every other line as it is."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from dml_core.config.problems import ConfigError
from dml_core.config.yaml_reading import parse_yaml


def render_section(section: str, values: Mapping[str, Any]) -> str:
    """Returns a section as the lines that stand for it in a params.yaml."""
    lines = [f"{section}:"]
    for key, value in values.items():
        text = yaml.safe_dump(value, default_flow_style=True, width=1_000_000, allow_unicode=True)
        # PyYAML ends a lone scalar with the mark for the end of a document.
        value_text = text.removesuffix("...\n").strip()
        lines.append(f"  {key}: {value_text}")
    return "\n".join(lines) + "\n"


def write_section(file: Path, section: str, values: Mapping[str, Any]) -> None:
    """Puts a section in the place of the one of that name, or at the end of the file.

    Comments outside the section stay; those within it spoke of the former values and go.

    Raises:
        ConfigError: where the file is laid out in a way that cannot be edited line by line.
    """
    before = file.read_text(encoding="utf-8")
    after = _replace(before, section, render_section(section, values))
    wanted = {**(parse_yaml(before, source=str(file)) or {}), section: dict(values)}
    if not _means(after, wanted):
        raise ConfigError(
            str(file), [f"the section {section} cannot be told from the rest. Edit it by hand."]
        )
    partial = file.with_name(f".{file.name}.partial")
    partial.write_text(after, encoding="utf-8")
    os.replace(partial, file)


def _means(text: str, wanted: Mapping[str, Any]) -> bool:
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
