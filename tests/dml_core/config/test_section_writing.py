from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dml_core.config import ConfigError
from dml_core.config.yaml_files import parse_yaml, render_section, write_section

PARAMS = Path(__file__).parents[3] / "params.yaml"
WHOLE_NUMBERS = st.integers(-(2**63), 2**63 - 1)
SCALARS = st.one_of(st.none(), st.booleans(), WHOLE_NUMBERS, st.floats(allow_nan=False), st.text())


def test_only_the_section_changes(tmp_path):
    file = tmp_path / "params.yaml"
    top, bottom = "# top\nseed: 0 # first\n\n", "\n# next\nloss:\n  c: 3\n"
    file.write_text(f"{top}data:\n  a: 1 # old\n\n  b: 2\n{bottom}")
    write_section(file, "data", {"name": "folder", "labels": ["x", "y"]})
    assert file.read_text() == f"{top}data:\n  name: folder\n  labels: [x, y]\n{bottom}"


def test_the_projects_own_file_keeps_every_other_line(tmp_path):
    file = tmp_path / "params.yaml"
    text = PARAMS.read_text(encoding="utf-8")
    file.write_text(text, encoding="utf-8")
    write_section(file, "data", {"name": "glyphs"})
    start, end = text.index("data:\n"), text.index("\naugmentation:")
    wanted = text[:start] + "data:\n  name: glyphs\n" + text[end:]
    assert file.read_text(encoding="utf-8") == wanted


@pytest.mark.parametrize("before", ["", "seed: 0", "seed: 0\n", "data: {a: 1}\n", "data:\n"])
def test_a_section_is_added_or_replaced_in_any_layout(tmp_path, before):
    file = tmp_path / "params.yaml"
    file.write_text(before)
    write_section(file, "data", {"b": 2})
    assert parse_yaml(file.read_text(), source="")["data"] == {"b": 2}
    assert list(tmp_path.iterdir()) == [file]


def test_a_layout_that_cannot_be_edited_is_refused_and_left_alone(tmp_path):
    file = tmp_path / "params.yaml"
    file.write_text("{data: {a: 1}, seed: 0}\n")
    with pytest.raises(ConfigError, match="the section data cannot be told"):
        write_section(file, "data", {"b": 2})
    assert file.read_text() == "{data: {a: 1}, seed: 0}\n"


@settings(deadline=None)
@given(st.dictionaries(st.from_regex(r"[a-z_]{3,9}", fullmatch=True), SCALARS, min_size=1))
def test_what_is_rendered_is_read_back(values):
    # YAML has no way to write lone surrogates and some control characters.
    values = {k: v for k, v in values.items() if not isinstance(v, str) or v.isprintable()}
    read = parse_yaml(render_section("data", values), source="")
    assert (read["data"] or {}) == values
