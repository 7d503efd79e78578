"""Tests of reading and writing YAML."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dml_core.config import ConfigError
from dml_core.config.yaml_files import parse_yaml, render_section, write_section
from tests.references.fuzzed_files import BOMB, NESTED_BOMB


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: !!python/object/apply:os.system ['touch evil']", "apply:os.system' is not supported"),
        ("a: !!python/name:os.system", "name:os.system' is not supported"),
        ("a: !!set {x}", "2002:set' is not supported"),
        ("a: !!binary aGk=", "2002:binary' is not supported"),
        ("a: !mine 3", "'!mine' is not supported"),
        ("a: &x [1, *x]", "a value contains itself"),
        (BOMB, "it expands to more than 20,000 values"),
        (NESTED_BOMB, "levels deep|more than 20,000 values"),
        ("[" * 30 + "]" * 30, "at most 20 levels deep"),
        ("[" * 5000, "nested deeper than 20 levels"),
        (f"{'k' * 201}: 1", "a key may have at most 200 characters"),
        ("a: " + "9" * 30, "must fit into 64 bits"),
        ("a: 0x" + "f" * 30, "must fit into 64 bits"),
        ("a: " + "9" * 5000, "not a readable whole number"),
        ('a: "\\ud800"', "a character that is not text"),
        ("? [a]\n: b", "a key must be a plain word"),
        ("{a: 1, a: 2}", "the key 'a' occurs twice"),
        ("#" * (1 << 21), "has more than 1,048,576 characters"),
    ],
)
def test_malicious_yaml_is_rejected(text, problem, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=problem):
        parse_yaml(text, source="a file")
    assert list(tmp_path.iterdir()) == []


def test_aliases_of_a_sane_size_are_read():
    assert parse_yaml("{a: &x {b: 1}, c: *x}", source="") == {"a": {"b": 1}, "c": {"b": 1}}


def test_a_chain_of_aliases_counts_with_its_depth():
    chain = "\n".join(["a0: &a0 {x: 1}"] + [f"a{n}: &a{n} {{x: *a{n - 1}}}" for n in range(1, 60)])
    with pytest.raises(ConfigError, match="at most 20 levels deep"):
        parse_yaml(chain, source="a file")


def test_a_date_is_text():
    assert parse_yaml("2020-01-01", source="") == "2020-01-01"


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
    with pytest.raises(ConfigError, match="the section data cannot be replaced"):
        write_section(file, "data", {"b": 2})
    assert file.read_text() == "{data: {a: 1}, seed: 0}\n"


# No field of a section is named like a truth value of YAML, such as yes.
KEYS = st.from_regex(r"[a-z_]{3,9}", fullmatch=True).filter(
    lambda key: parse_yaml(key, source="") == key
)


@settings(deadline=None)
@given(st.dictionaries(KEYS, SCALARS, min_size=1))
def test_what_is_rendered_is_read_back(values):
    # YAML has no way to write lone surrogates and some control characters.
    values = {k: v for k, v in values.items() if not isinstance(v, str) or v.isprintable()}
    read = parse_yaml(render_section("data", values), source="")
    assert (read["data"] or {}) == values
