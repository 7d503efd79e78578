"""Damaged, hostile and absurd files, made by hypothesis out of sound ones."""

import copy
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import yaml
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

NUM_EXAMPLES = int(os.environ.get("DML_FUZZ_EXAMPLES", "0"))
"""Cases of each test; 0 takes the few, always the same, of a run of all tests."""
HANG_SECONDS = 30
"""A case that computes for so long is taken for one that never ends."""


def fuzzed(few: int) -> settings:
    """Returns how many cases a test has: a few fixed ones, or those that `make fuzz` asks for."""
    return settings(
        max_examples=NUM_EXAMPLES or few,
        derandomize=not NUM_EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


class Hang(BaseException):
    """A case did not end; no handler for errors takes it for one of the file's."""


@contextmanager
def no_hang() -> Iterator[None]:
    """Raises Hang where what is inside does not end; a bound that no sound case comes near.

    The processor's time counts, not the clock's, which a busy machine runs away with.
    """

    def stop(signum: int, frame: FrameType | None) -> None:
        raise Hang(f"the case did not end within {HANG_SECONDS} seconds")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, HANG_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def check_message(error: Exception) -> None:
    """Checks that what a user is told can be printed and read."""
    text = str(error)
    text.encode("utf-8")
    assert 10 < len(text) < 200_000, f"a message of {len(text):,} characters"


BOMB = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
)
"""A YAML text of a few lines that stands for 9 to the power of 12 words."""
NESTED_BOMB = "\n".join(
    ["b0: &b0 {x: 1, y: 2, z: 3}"]
    + [f"b{n}: &b{n} {{x: *b{n - 1}, y: *b{n - 1}, z: *b{n - 1}}}" for n in range(1, 24)]
)
HOSTILE_YAML = [
    *(BOMB, NESTED_BOMB, "&a [*a]", "&a {x: *a}", "*nowhere", "<<: {a: 1}"),
    *("!!python/object/apply:os.system ['true']", "!!python/name:os.system", "!evil {a: 1}"),
    *("!!set {a, b}", "!!binary aGVsbG8=", "!!omap [a: 1]", "!!pairs [a: 1]", "!!timestamp x"),
    *("2020-01-01", "2020-99-99", "2020-01-01 10:00:00", "12:30:45", "0o17", "0b1", "~", "null"),
    *(".nan", ".inf", "-.inf", "1e999", "-1e999", "1e-999", "9" * 25, "9" * 5000, "-1"),
    *("0x" + "f" * 5000, "1" + ":0" * 900, "[" * 400, "{a: " * 400, "- " * 400, "1_000", "0"),
    *("? [a, b]\n: c", "? {a: b}\n: c", "? !!set {a}\n: c", "{a: 1, a: 2}", "[]", "{}", "''"),
    *("<script>alert(1)</script>", "../../etc/passwd", "'=1+1'", '"\\0"', '"\\ud800"', "\x00"),
    *(
        "%YAML 9.9\n---\n",
        "---\n---\n",
        "...",
        "|",
        ">",
        "@",
        "`",
        "\t",
        "'",
        '"',
        "\ufeff",
        "a: b",
    ),
    *("true", "[1, 2]", "{choice: [1, 1]}", "{choice: []}", "{log_uniform: [0, 1]}"),
    *("{uniform: [1, 0x" + "f" * 400 + "]}", "{int_uniform: [0, 1e30]}", "{uniform: [a, b]}"),
]
"""Words, values and lines that have broken one reader or another."""

Edit = Callable[[bytes], bytes]


@st.composite
def damaged_bytes(draw: st.DrawFn, whole: bytes, *, snippets: list[bytes] | None = None) -> bytes:
    """Returns the bytes of a file after some flips, cuts, repetitions and insertions."""
    content = bytearray(whole)
    for _ in range(draw(st.integers(1, 6))):
        place = draw(st.integers(0, max(len(content) - 1, 0)))
        length = draw(st.integers(1, 64))
        kind = draw(st.sampled_from(["flip", "cut", "repeat", "insert", "overwrite", "truncate"]))
        new = draw(st.sampled_from(snippets)) if snippets else draw(st.binary(max_size=12))
        if kind == "flip" and content:
            content[place] ^= 1 << draw(st.integers(0, 7))
        elif kind == "cut":
            del content[place : place + length]
        elif kind == "repeat":
            content[place:place] = content[place : place + length] * draw(st.integers(1, 20))
        elif kind == "insert":
            content[place:place] = new
        elif kind == "overwrite":
            content[place : place + len(new)] = new
        elif draw(st.integers(0, 4)) == 0:
            del content[place:]
    return bytes(content)


@st.composite
def damaged_lines(draw: st.DrawFn, whole: str) -> bytes:
    """Returns a YAML text whose lines were dropped, repeated, swapped, or have another value."""
    lines = whole.splitlines()
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(lines) - 1))
        kind = draw(st.sampled_from(["drop", "repeat", "swap", "value", "indent"]))
        if kind == "drop" and len(lines) > 1:
            del lines[place]
        elif kind == "repeat":
            lines.insert(draw(st.integers(0, len(lines))), lines[place])
        elif kind == "swap":
            other = draw(st.integers(0, len(lines) - 1))
            lines[place], lines[other] = lines[other], lines[place]
        elif kind == "indent":
            lines[place] = " " * draw(st.integers(0, 4)) + lines[place].lstrip()
        else:
            key = lines[place].partition(":")[0]
            lines[place] = f"{key}: {draw(st.sampled_from(HOSTILE_YAML))}"
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def plain_values(keys: list[str]) -> st.SearchStrategy[Any]:
    """Returns anything that YAML can write, often with keys and words that mean something."""
    words = st.sampled_from(keys) | st.text(max_size=8)
    leaves = (
        st.none()
        | st.booleans()
        | st.integers(-(10**30), 10**30)
        | st.floats()
        | words
        | st.dates()
        | st.sampled_from([10**400, -(10**400), 2**63, 2**32, "1e-4", "nan", "", "a.b", "..", "="])
    )
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(words | st.integers(0, 3) | st.none(), inner, max_size=4)
        ),
        max_leaves=12,
    )


@st.composite
def changed_structures(draw: st.DrawFn, whole: dict[str, Any], keys: list[str]) -> bytes:
    """Returns the YAML of a mapping in which some entries became others, were added or left out."""
    content = copy.deepcopy(whole)
    for _ in range(draw(st.integers(1, 4))):
        node: Any = content
        # A way down of random length to the entry that changes.
        while isinstance(node, dict) and node:
            key = draw(st.sampled_from(sorted(node, key=str)))
            if isinstance(node[key], dict) and node[key] and draw(st.integers(0, 3)):
                node = node[key]
                continue
            kind = draw(st.sampled_from(["replace", "replace", "add", "drop"]))
            if kind == "drop":
                del node[key]
            else:
                name = key if kind == "replace" else draw(st.sampled_from(keys))
                node[name] = draw(plain_values(keys))
            break
    return _dump(content)


def built_structures(keys: list[str]) -> st.SearchStrategy[bytes]:
    """Returns the YAML of mappings made of known keys and anything else."""
    values = plain_values(keys)
    return st.dictionaries(st.sampled_from(keys), values, max_size=8).map(_dump)


def _dump(content: Any) -> bytes:
    # Numbers beyond Python's limit of digits, and lone surrogates, cannot be written as they are.
    text: str = yaml.safe_dump(content, allow_unicode=True, sort_keys=False)
    return text.encode("utf-8", "surrogatepass")
