"""Imports go one way, flows -> tasks -> dml_core, and sub-packages have no import cycles."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FORBIDDEN = {
    "dml_core": {"prefect", "ray", "mlflow", "dvc", "tasks", "flows"},
    "tasks": {"flows"},
}
LAYERS = ("dml_core", "tasks", "flows")


def imported_roots(path: Path) -> Iterator[str]:
    for name in imported_names(path):
        yield name.split(".")[0]


def imported_names(path: Path) -> Iterator[str]:
    """Yields the modules that a file imports anywhere; `from a import b` is a.b."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("layer", FORBIDDEN)
def test_layer_imports_only_downward(layer):
    files = list((ROOT / layer).rglob("*.py"))
    offenders = {str(p): bad for p in files if (bad := set(imported_roots(p)) & FORBIDDEN[layer])}
    assert files
    assert offenders == {}


def test_the_check_finds_a_forbidden_import(tmp_path):
    path = tmp_path / "bad.py"
    path.write_text("def f():\n    import ray.tune\n    from mlflow import log\n")
    assert set(imported_roots(path)) == {"ray", "mlflow"}


def package_imports(root: Path) -> dict[str, set[str]]:
    """Returns the imports of each sub-package, or of each module at the top of a layer."""
    found: dict[str, set[str]] = {}
    for layer in LAYERS:
        for path in (root / layer).rglob("*.py"):
            here = unit_of(".".join(path.relative_to(root).with_suffix("").parts))
            others = {unit_of(name) for name in imported_names(path)}
            found.setdefault(here, set()).update(others - {here, ""})
    return found


def unit_of(name: str) -> str:
    """Returns the sub-package of a module; empty for third-party modules."""
    layer, _, rest = name.partition(".")
    if layer not in LAYERS or not rest:
        return ""
    return f"{layer}.{rest.split('.')[0].removesuffix('__init__')}".rstrip(".")


def find_cycle(imports: dict[str, set[str]]) -> list[str]:
    """Returns the packages of an import cycle; an empty list if there is none."""
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for other in sorted(imports.get(name, ())):
            if cycle := visit(other, [*path, name]):
                return cycle
        done.add(name)
        return []

    return next((cycle for name in sorted(imports) if (cycle := visit(name, []))), [])


def test_sub_packages_have_no_import_cycle():
    imports = package_imports(ROOT)
    assert "dml_core.evaluation" in imports["dml_core.training"]
    assert find_cycle(imports) == []


def test_the_check_finds_a_cycle(tmp_path):
    for layer, text in (("a", "from dml_core.b import x\n"), ("b", "from dml_core.a import y\n")):
        folder = tmp_path / "dml_core" / layer
        folder.mkdir(parents=True)
        (folder / "module.py").write_text(text)
    assert find_cycle(package_imports(tmp_path)) == ["dml_core.a", "dml_core.b", "dml_core.a"]


def module_file(name: str) -> Path | None:
    """Returns the file of a module of ours; None if there is none."""
    base = ROOT / Path(*name.split("."))
    return next((p for p in (base.with_suffix(".py"), base / "__init__.py") if p.is_file()), None)


def defined_names(path: Path) -> set[str]:
    """Returns all names that a file binds outside of functions, and some more."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update(alias.asname or alias.name for alias in node.names)
    return names


def test_late_imports_find_their_modules_and_names():
    """An import inside a function is run by few tests, and a renamed module would break it."""
    missing = []
    for layer in LAYERS:
        for path in (ROOT / layer).rglob("*.py"):
            for name in imported_names(path):
                module, _, attribute = name.rpartition(".")
                if name.split(".")[0] not in LAYERS or module_file(name):
                    continue
                file = module_file(module)
                if file is None or attribute not in defined_names(file):
                    missing.append(f"{path.relative_to(ROOT)}: {name}")
    assert missing == []


def test_the_declared_python_is_the_one_that_runs():
    assert sys.version_info[:2] == (3, 11)
