"""Every test that docs/security.md names is there."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")


def list_tests(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_named_test_exists():
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)
    assert len(named) > 30
    missing = [
        f"{file}::{test}"
        for file, test in named
        if not (ROOT / file).is_file() or (test and test not in list_tests(ROOT / file))
    ]
    assert missing == []


def test_each_threat_is_on_the_page():
    for threat in (
        "loopback", "token", "allow-remote", "checkpoint with code", "zip with `../`", "tar with",
        "image bomb", "YAML with tags", "=HYPERLINK", "`<script>`", "path with `..`",
        "environment full of them", "make fuzz", "make audit",
    ):  # fmt: skip
        assert threat in PAGE, threat
