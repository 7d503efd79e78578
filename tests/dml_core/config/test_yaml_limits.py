import pytest

from dml_core.config import ConfigError
from dml_core.config.yaml_files import parse_yaml
from tests.references.fuzzed_files import BOMB, NESTED_BOMB


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: !!python/object/apply:os.system ['touch evil']", "apply:os.system' is for code"),
        ("a: !!python/name:os.system", "name:os.system' is for code"),
        ("a: !!set {x}", "2002:set' is for code and special values"),
        ("a: !!binary aGk=", "2002:binary' is for code"),
        ("a: !mine 3", "'!mine' is for code"),
        ("a: &x [1, *x]", "a value holds itself"),
        (BOMB, "it stands for more than 20,000 values"),
        (NESTED_BOMB, "levels deep|more than 20,000 values"),
        ("[" * 30 + "]" * 30, "at most 20 levels deep"),
        ("[" * 5000, "nested deeper than the 20 levels"),
        (f"{'k' * 201}: 1", "a key may have at most 200 characters"),
        ("a: " + "9" * 30, "must fit into 64 bits"),
        ("a: 0x" + "f" * 30, "must fit into 64 bits"),
        ("a: " + "9" * 5000, "no whole number that can be read"),
        ('a: "\\ud800"', "a character that is no text"),
        ("? [a]\n: b", "a key must be a plain word"),
        ("{a: 1, a: 2}", "the key 'a' stands twice"),
        ("#" * (1 << 21), "has more than 1,048,576 characters"),
    ],
)
def test_what_no_person_writes_is_refused(text, problem, tmp_path, monkeypatch):
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
