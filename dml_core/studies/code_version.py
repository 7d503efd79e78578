"""Tells one version of the code that makes numbers from another."""

import hashlib
from functools import cache
from pathlib import Path

# What a trial's numbers depend on; studies and statistics only read them.
_PARTS = ("config", "data", "evaluation", "losses", "models", "samplers", "training", "seeding.py")


@cache
def hash_training_code() -> str:
    """Returns a hash over the sources that a trial's numbers depend on."""
    root = Path(__file__).parents[1]
    hasher = hashlib.sha256()
    for part in _PARTS:
        path = root / part
        files = [path] if path.is_file() else sorted(path.rglob("*.py"))
        for file in files:
            hasher.update(f"{file.relative_to(root).as_posix()}\0".encode())
            hasher.update(hashlib.sha256(file.read_bytes()).digest())
    return hasher.hexdigest()[:16]
