"""The messages that the drills look for are those of the product."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.drills import messages

ROOT = Path(__file__).parents[2]
MESSAGES = {name: text for name, text in vars(messages).items() if name.isupper()}


@cache
def list_texts() -> list[str]:
    """Every string in the product's code; a placeholder is a blank."""
    texts = []
    for folder in ("dml_core", "tasks", "flows"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    parts = (p.value if isinstance(p, ast.Constant) else " " for p in node.values)
                    texts.append("".join(map(str, parts)))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    texts.append(re.sub(r"%\w|\{\w*\}", " ", node.value))
    return texts


@pytest.mark.parametrize("name", MESSAGES)
def test_the_product_has_a_message_that_the_drills_look_for(name):
    text = MESSAGES[name].removeprefix("dml: ")
    assert any(text in found for found in list_texts()), f"no message has {text!r}: reword it here"
