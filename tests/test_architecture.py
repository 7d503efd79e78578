"""Imports go one way: flows -> tasks -> dml_core."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FORBIDDEN = {
    "dml_core": {"prefect", "ray", "mlflow", "dvc", "tasks", "flows"},
    "tasks": {"flows"},
}


def imported_roots(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module.split(".")[0]


@pytest.mark.parametrize("layer", FORBIDDEN)
def test_layer_imports_only_downward(layer):
    files = list((ROOT / layer).rglob("*.py"))
    offenders = {str(p): bad for p in files if (bad := set(imported_roots(p)) & FORBIDDEN[layer])}
    assert files
    assert offenders == {}


def test_the_check_sees_a_forbidden_import(tmp_path):
    path = tmp_path / "bad.py"
    path.write_text("def f():\n    import ray.tune\n    from mlflow import log\n")
    assert set(imported_roots(path)) == {"ray", "mlflow"}


def test_files_stay_readable_in_one_sitting():
    layers = ("dml_core", "tasks", "flows")
    long_files = {
        str(path): count
        for layer in layers
        for path in (ROOT / layer).rglob("*.py")
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > 250
    }
    assert long_files == {}


def test_the_declared_python_is_the_one_that_runs():
    assert sys.version_info[:2] == (3, 11)
