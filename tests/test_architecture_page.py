"""docs/architecture.md matches the code: its links, its functions and its chains of calls."""

import ast
import itertools
import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
TEXT = PAGE.read_text(encoding="utf-8")

TRIAL = "From `dml run` to the gradient step"
EPOCH = "From the end of an epoch to MLflow"
ANSWER = "From the journal to the answer"
KEY = "One key: `loss.margin`"
IMAGE = "One image"
PLACES = "Where to find"
MOST_HOPS = {TRIAL: 16, EPOCH: 10}

LINK = re.compile(r"\[[^\]]+\]\(([^)#\s]+)\)(?: `([A-Za-z_][\w.]*)`)?")
STEP = re.compile(
    r"^\d+\. \[([^\]]+)\]\(\.\./([^)#\s]+)\) `([A-Za-z_][\w.]*)`(?: \(called as `(\w+)`\))?",
    re.MULTILINE,
)


class Hop(NamedTuple):
    """A function of a chain of calls."""

    file: str
    name: str
    """Dotted for a method and for a function inside another."""
    called_as: str
    """Its name in the function before it, such as the parameter of a callback."""

    def __str__(self) -> str:
        return f"{self.file}::{self.name}"


def read_section(title: str) -> str:
    """Returns the text below a heading, up to the next heading of the same level."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert found is not None, f"docs/architecture.md has no heading {title!r}"
    return found[1]


def read_chains(title: str) -> list[list[Hop]]:
    """Returns the numbered hops of a section; a paragraph of text begins another chain."""
    paragraphs = [STEP.findall(text) for text in read_section(title).split("\n\n")]
    return [
        [Hop(file, name, alias or name.split(".")[-1]) for _, file, name, alias in steps]
        for steps in paragraphs
        if steps
    ]


def find_definition(file: Path, name: str) -> ast.AST | None:
    """Returns the function, class, method, field or constant with a dotted name, or None."""
    node: ast.AST | None = ast.parse(file.read_text(encoding="utf-8"))
    for part in name.split("."):
        node = next((child for child in _children(node) if _name_of(child) == part), None)
        if node is None:
            return None
    return node


def _children(node: ast.AST | None) -> list[ast.stmt]:
    """Returns the statements of a module, class or function, those inside its blocks included."""
    found: list[ast.stmt] = []
    for child in ast.iter_child_nodes(node) if node is not None else ():
        if isinstance(child, ast.stmt):
            found.append(child)
            if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found += _children(child)
    return found


def _name_of(node: ast.stmt) -> str:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name
    if isinstance(node, ast.AnnAssign):
        return ast.unparse(node.target)
    return ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else ""


def names_in(node: ast.AST) -> set[str]:
    """Returns every name and attribute in a definition."""
    return {
        name
        for child in ast.walk(node)
        if (name := getattr(child, "id", "") or getattr(child, "attr", ""))
    }


def is_called(caller: Hop, called: Hop) -> bool:
    """Returns whether the body of one function uses the name of another."""
    definition = find_definition(ROOT / caller.file, caller.name)
    return definition is not None and called.called_as in names_in(definition)


def test_every_linked_file_exists_and_defines_the_name_beside_it():
    linked = LINK.findall(TEXT)
    assert len(linked) > 40
    missing = []
    for target, name in linked:
        file = (PAGE.parent / target).resolve()
        if not file.exists():
            missing.append(target)
        elif name and file.suffix == ".py" and find_definition(file, name) is None:
            missing.append(f"{target} `{name}`")
    assert missing == []


@pytest.mark.parametrize("title", [TRIAL, EPOCH])
def test_each_hop_calls_the_next_and_there_are_few(title):
    chains = read_chains(title)
    assert 5 < sum(len(chain) for chain in chains) <= MOST_HOPS[title]
    broken = [
        f"{caller} does not call {called}"
        for chain in chains
        for caller, called in itertools.pairwise(chain)
        if not is_called(caller, called)
    ]
    assert broken == []


def test_the_first_chain_begins_at_the_command_and_ends_at_the_gradient():
    (hops,) = read_chains(TRIAL)
    assert hops[0].file == "flows/commands/run.py"
    last = find_definition(ROOT / hops[-1].file, hops[-1].name)
    assert last is not None
    assert "backward" in names_in(last)


@pytest.mark.parametrize("title", [TRIAL, EPOCH, ANSWER, KEY, IMAGE])
def test_the_text_of_a_link_is_its_path(title):
    steps = STEP.findall(read_section(title))
    assert len(steps) > 5
    assert [file for text, file, *_ in steps if text != file] == []


@pytest.mark.parametrize(
    "subject",
    ["losses", "gradient step", "statistics", "writes MLflow", "decides a resume"],
)
def test_the_page_says_where_to_find(subject):
    rows = [line for line in read_section(PLACES).splitlines() if line.startswith("|")]
    assert any(subject in row and LINK.search(row) for row in rows)


def test_the_check_finds_a_call_that_is_not_there():
    (hops,) = read_chains(TRIAL)
    assert not is_called(hops[0], hops[-1])
