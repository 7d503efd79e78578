"""The pages name only files, links, commands and make targets that exist."""

import re
from pathlib import Path

import pytest
import typer

from flows.cli import app

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "deploy").rglob("*.md"),
    ]
)
LINK = re.compile(r"\]\(([^)\s]+)\)")
FILE = re.compile(
    r"`((?:benchmarks|deploy|dml_core|docs|flows|studies|tasks|tests|tools)/[\w./-]*\w/?)(?:::\w+)?`"
)
COMMAND = re.compile(r"(?:^|`|&& |then )dml ((?:data )?[a-z-]+)", re.MULTILINE)
TARGET = re.compile(r"(?:^|`)make ([a-z][a-z-]*)", re.MULTILINE)


def name_page(page: Path) -> str:
    return str(page.relative_to(ROOT))


def list_anchors(page: Path) -> set[str]:
    """Returns the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


def list_commands() -> set[str]:
    """Returns the commands of dml, those of a group with its name before them."""
    top = vars(typer.main.get_command(app))["commands"]
    groups = {name: vars(command).get("commands", {}) for name, command in top.items()}
    return {*top, *(f"{name} {each}" for name, group in groups.items() for each in group)}


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_every_link_leads_to_a_file_and_a_heading(page):
    broken = []
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in list_anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_every_named_file_exists(page):
    named = set(FILE.findall(page.read_text(encoding="utf-8")))
    assert sorted(path for path in named if not (ROOT / path).exists()) == []


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_every_command_and_make_target_exists(page):
    text = page.read_text(encoding="utf-8")
    assert set(COMMAND.findall(text)) - list_commands() == set()
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert set(TARGET.findall(text)) - set(targets) == set()


def test_the_pages_name_files_commands_and_targets():
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert len(set(FILE.findall(text))) > 40
    assert {"run", "up", "data pull", "doctor"} <= set(COMMAND.findall(text))
    assert {"run", "test", "bench", "drill"} <= set(TARGET.findall(text))
