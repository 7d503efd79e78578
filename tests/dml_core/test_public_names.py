"""What `import dml_core` and its packages offer, and what they load for it."""

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import dml_core

ROOT = Path(__file__).parents[2]
PACKAGES = [
    f"dml_core.{found.name}" for found in pkgutil.iter_modules(dml_core.__path__) if found.ispkg
]
LIGHT = [name for name in PACKAGES if name not in ("dml_core.losses", "dml_core.models")]
"""Packages that are imported before it is known whether anything is computed."""


def list_loaded(code: str, *names: str) -> set[str]:
    """Runs code in another process and returns which of the modules it has loaded."""
    shown = f"import sys; {code}; print(*(n for n in {names!r} if n in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", shown], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_the_bare_import_loads_nothing():
    heavy = ("torch", "faiss", "numpy", "pandas", "pydantic", "pyarrow")
    assert list_loaded("import dml_core", *heavy) == set()


def test_the_packages_load_torch_only_when_it_is_used():
    heavy = ("torch", "faiss", "pandas", "timm")
    assert list_loaded(f"import {', '.join(LIGHT)}", *heavy) == set()
    assert list_loaded("from dml_core.analysis import read_results", *heavy) == {"pandas"}
    assert "torch" in list_loaded("from dml_core.evaluation import evaluate_embeddings", *heavy)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_of_a_package_exists(package: str):
    module = importlib.import_module(package)
    assert module.__all__
    assert [name for name in module.__all__ if not hasattr(module, name)] == []
    assert not hasattr(module, "no_such_name")
