"""Whatever stands in a params.yaml, reading it gives a configuration or a list of problems."""

import tempfile
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dml_core.config import ConfigError, TrialConfig
from dml_core.config.loading import load_project_config, to_flat_dict
from dml_core.config.pipeline import PipelineConfig
from tests.references.fuzzed_files import (
    HOSTILE_YAML,
    built_structures,
    changed_structures,
    check_message,
    damaged_bytes,
    damaged_lines,
    fuzzed,
    no_hang,
    plain_values,
)

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "params.yaml").read_text(encoding="utf-8")
WHOLE = yaml.safe_load(TEXT)
KEYS = [*WHOLE, *to_flat_dict(TrialConfig()), *to_flat_dict(PipelineConfig())]
SNIPPETS = [text.encode("utf-8", "surrogatepass") for text in HOSTILE_YAML] + [b"\xff\xfe", b"\xc3"]


def read(content: bytes, *assignments: str) -> None:
    """Reads a params.yaml; whatever is wrong must be told as a ConfigError that can be printed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "params.yaml"
        path.write_bytes(content)
        with no_hang():
            try:
                load_project_config(path, assignments)
            except ConfigError as error:
                check_message(error)


@fuzzed(100)
@given(damaged_bytes(TEXT.encode(), snippets=SNIPPETS))
def test_damaged_bytes(content):
    read(content)


@fuzzed(100)
@given(damaged_lines(TEXT))
def test_damaged_lines(content):
    read(content)


@fuzzed(100)
@given(changed_structures(WHOLE, KEYS))
def test_values_of_another_kind(content):
    read(content)


@fuzzed(100)
@given(built_structures(KEYS))
def test_any_structure(content):
    read(content)


@fuzzed(100)
@given(st.sampled_from(KEYS), plain_values(KEYS) | st.sampled_from(HOSTILE_YAML))
def test_any_assignment(key, value):
    text = value if isinstance(value, str) else yaml.safe_dump(value, default_flow_style=True)
    read(TEXT.encode(), f"{key}={text}")


@pytest.mark.parametrize("text", HOSTILE_YAML)
def test_each_hostile_word_alone_and_as_a_value(text):
    for content in (text, f"loss: {text}", f"seed: {text}", f"data: {{continuous_labels: {text}}}"):
        read(content.encode("utf-8", "surrogatepass"))
    read(b"", f"loss.alpha={text}")
