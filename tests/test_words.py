"""Pages, messages and comments use the plain words of the field."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
AVOIDED = {
    r"go(?:es)? on": "resumes, continues",
    r"(?:is|are|was|were) told|tells": "reports, logs, raises",
    r"nobody|somebody": "no user, a user, a process",
    r"mended|mends?": "fixed, fixes",
    r"asks? for|asked for": "requests, needs",
    r"(?:a|an) (?:\w+ ){1,3}of (?:its|their|your|my|our) own": "its own ..., a separate ...",
}
"""Words, and what to write instead."""
FOLDERS = ("benchmarks", "deploy", "dml_core", "docs", "flows", "studies", "tasks", "tools")
TYPES = {".py", ".md", ".yaml", ".jinja", ".js", ".html"}


def list_files() -> list[Path]:
    """Returns the files of the product, without numbers and texts that runs have written."""
    top = [path for path in ROOT.iterdir() if path.is_file() and path.suffix in TYPES]
    nested = [path for name in FOLDERS for path in (ROOT / name).rglob("*")]
    kept = [path for path in [*top, *nested] if path.suffix in TYPES]
    return [path for path in kept if ROOT / "docs" / "findings" not in path.parents]


def find_words(text: str, pattern: str) -> list[str]:
    # A word may be broken over two lines, and a comment's mark stands between them.
    spaced = pattern.replace(" ", r"\s+(?:#\s*)?")
    return [found.group() for found in re.finditer(rf"\b(?:{spaced})\b", text, re.IGNORECASE)]


@pytest.mark.parametrize("pattern", AVOIDED)
def test_no_file_has_a_word_that_we_avoid(pattern):
    found = {
        str(path.relative_to(ROOT)): words
        for path in list_files()
        if (words := find_words(path.read_text(encoding="utf-8"), pattern))
    }
    assert found == {}, f"write instead: {AVOIDED[pattern]}"


@pytest.mark.parametrize(
    ("sentence", "pattern"),
    zip(
        (
            "The sweep goes\n    # on.",
            "The user is told why.",
            "Nobody refers to it.",
            "Until it is mended.",
            "It asks for a GPU.",
            "Each has a small folder of its own.",
        ),
        AVOIDED,
        strict=True,
    ),
)
def test_each_word_is_found(sentence, pattern):
    assert find_words(sentence, pattern)
    assert not find_words("The sweep resumes and reports why; its own folder is fixed.", pattern)


def test_the_files_are_those_of_the_product():
    names = {path.relative_to(ROOT).as_posix() for path in list_files()}
    assert {"README.md", "dml_core/devices.py", "docs/ask.md", "studies/main.yaml"} <= names
