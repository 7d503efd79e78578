"""Reads what a training recorded of its epochs; light, since many only read."""

import json
from pathlib import Path
from typing import Any

FILE_NAME = "epochs.jsonl"


def read_epochs(folder: Path) -> list[dict[str, Any]]:
    """Returns the recorded epochs of a training folder; a torn last line is left out."""
    path = folder / FILE_NAME
    if not path.exists():
        return []
    epochs = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            epochs.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return epochs
