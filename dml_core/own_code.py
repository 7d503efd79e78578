"""Code of the project folder that a configuration names as `python:my_package.my_module:MyLoss`.

A module is imported only where a configuration names it. Its sources are part of a trial's key and
travel to the nodes: every .py file of its package (or the one file of a module without package),
and of the packages of the project folder that these import.

Uses the standard library only: `tasks.sources` imports it before anything else.
"""

import ast
import hashlib
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

PREFIX = "python:"
NAME = r"python:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"
PATTERN = f"^{NAME}$"
PROJECT_PACKAGES = ("dml_core", "tasks", "flows")
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class OwnCodeError(ValueError):
    """Code that a configuration names is missing, fails or breaks its contract."""


def is_own(name: object) -> bool:
    """Returns whether a value names code of the project folder."""
    return isinstance(name, str) and name.startswith(PREFIX)


def find_names(text: str) -> list[str]:
    """Returns the names of own code in a text, such as a YAML file, each once."""
    return list(dict.fromkeys(re.findall(rf"(?<![\w.]){NAME}", text)))


def list_sources(names: Iterable[str], root: Path) -> dict[str, Path]:
    """Returns the files of all packages that names need from a folder, by relative path.

    Args:
        names: as in a configuration.
        root: the project folder, or a copy of its sources. Packages that it lacks are left out.
    """
    found: dict[str, Path] = {}
    waiting = [_top(name) for name in names]
    seen = set(PROJECT_PACKAGES)
    while waiting:
        package = waiting.pop()
        if package in seen:
            continue
        seen.add(package)
        for file in _list_files(package, root):
            found[file.relative_to(root).as_posix()] = file
            waiting += _list_imports(file)
    return dict(sorted(found.items()))


def _top(name: str) -> str:
    return name.removeprefix(PREFIX).partition(":")[0].partition(".")[0]


def _list_files(package: str, root: Path) -> list[Path]:
    if (root / package).is_dir():
        files = sorted((root / package).rglob("*.py"))
        return [file for file in files if "__pycache__" not in file.parts]
    module = root / f"{package}.py"
    return [module] if module.is_file() else []


def _list_imports(file: Path) -> list[str]:
    """Returns the top-level names that a file imports; none for a file with a syntax error."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return []
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name.partition(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.append(node.module.partition(".")[0])
    return found


def find_root(name: str) -> Path:
    """Returns the folder that holds the code of a name: that of this package, or the current one.

    In a process of a run, the first is the copy of the sources with which the run started.

    Raises:
        OwnCodeError: when neither does.
    """
    for root in (Path(__file__).resolve().parents[1], Path.cwd()):
        if _list_files(_top(name), root):
            return root
    module = name.removeprefix(PREFIX).partition(":")[0]
    raise OwnCodeError(
        f"{name} must name a module of the project folder, which travels to the nodes and counts "
        f"in the key of a trial. There is neither {_top(name)}.py nor a folder {_top(name)} in "
        f"{Path.cwd()}. Put the module {module} there."
    )


def hash_sources(names: Iterable[str]) -> str:
    """Returns a hash over the sources that names need, as they were at the first call.

    Empty without names.
    """
    hashes = [_hash_at(name, find_root(name)) for name in sorted(set(names))]
    return hashlib.sha256("".join(hashes).encode()).hexdigest()[:16] if hashes else ""


@cache
def _hash_at(name: str, root: Path) -> str:
    # A process imports a module once, so it is the first content that counts.
    hasher = hashlib.sha256()
    for path, file in list_sources([name], root).items():
        content = file.read_bytes()
        hasher.update(f"{path}\0{len(content)}\0".encode())
        hasher.update(content)
    return hasher.hexdigest()


def load_object(name: str) -> Callable[..., Any]:
    """Imports a module of the project folder and returns the class or function of a name.

    Raises:
        OwnCodeError: when it is missing, fails at import, or comes from elsewhere.
    """
    module_name, _, attribute = name.removeprefix(PREFIX).partition(":")
    root = find_root(name)
    if str(root) not in sys.path:
        # Last, so that nothing of the project folder hides an installed package.
        sys.path.append(str(root))
        importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"[:300]
        raise OwnCodeError(f"{name} cannot be imported ({reason}). Fix {module_name}.") from error
    file = Path(getattr(module, "__file__", None) or "").resolve()
    if not file.is_relative_to(root.resolve()):
        raise OwnCodeError(
            f"{name} must come from the project folder {root}. Another module of this name is "
            f"imported from {file}. Rename yours."
        )
    found = getattr(module, attribute, None)
    if not callable(found):
        known = [key for key, value in vars(module).items() if callable(value) and key[0] != "_"]
        listed = ", ".join(sorted(known)) or "no class and no function"
        raise OwnCodeError(f"{name} must name a class or function of {file}. It has: {listed}.")
    return found  # type: ignore[no-any-return]


def list_arguments(target: Callable[..., Any]) -> dict[str, bool]:
    """Returns the keyword arguments of a class or function, and whether each is required."""
    found = inspect.signature(target).parameters.values()
    return {each.name: each.default is each.empty for each in found if each.kind in _NAMED}


def call_with_options(
    target: Callable[..., Any],
    *,
    name: str,
    options: Mapping[str, Any],
    given: Mapping[str, Any],
    key: str,
    suggest: Callable[[str, Iterable[str]], str],
) -> Any:
    """Calls a class or function with its options, and with those given values that it takes.

    Args:
        target: from `load_object`.
        name: as in the configuration, for messages.
        options: keyword arguments of the configuration.
        given: values that the project passes to an argument of that name.
        key: the dotted key of the options, for messages.
        suggest: returns a hint at the nearest of known names.

    Raises:
        OwnCodeError: with all problems of the options, or when the call fails.
    """
    known = list_arguments(target)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(target).parameters.values())
    problems = [
        f"{key}.{option} is not an argument of {name}.{suggest(option, known)}"
        for option in options
        if option not in known and not takes_any
    ]
    problems += [
        f"{key}.{option} is passed by the project and cannot be set."
        for option in options
        if option in given
    ]
    problems += [
        f"{key}.{argument} is missing: {name} requires it."
        for argument, is_required in known.items()
        if is_required and argument not in options and argument not in given
    ]
    if problems:
        raise OwnCodeError("\n".join(problems))
    passed = {argument: value for argument, value in given.items() if argument in known}
    try:
        return target(**passed, **options)
    except Exception as error:
        shown = ", ".join(f"{argument}={value!r}" for argument, value in options.items())
        raise OwnCodeError(
            f"{name} cannot be built ({type(error).__name__}: {str(error)[:300]}). "
            f"Got {key}: {shown or 'none'}."
        ) from error
