"""Pinned sources: the copy of the code, as it was at a run's start, that all its processes import.

A command that computes copies the project's packages to `.dml/sources/<hash>/`, and it and its
child processes import from there. An edit or another branch does not affect the run. Code of the
project folder that params.yaml, a study or the command names as `python:module:Name` is copied too.

Uses the standard library only: it is imported first, and removed from sys.modules again.
"""

import compileall
import contextlib
import fcntl
import hashlib
import importlib
import os
import py_compile
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from dml_core.own_code import PROJECT_PACKAGES, find_names, list_sources

PACKAGES = PROJECT_PACKAGES
VARIABLE = "DML_SOURCES"
"""Environment variable with the folder of a run's pinned sources."""
FOLDER = Path(".dml") / "sources"
_TRIES = 5
_NOTHING: Mapping[str, Path] = MappingProxyType({})


class SourcesChanging(ValueError):
    """The sources kept changing while they were read."""


def imported_tree() -> Path:
    """Returns the folder from which this process imports the project's packages."""
    return Path(__file__).resolve().parents[1]


def is_pinned() -> bool:
    """Returns whether this process imports from pinned sources."""
    return os.environ.get(VARIABLE) == str(imported_tree())


def find_tree(folder: Path) -> Path | None:
    """Returns the tree of a folder: itself or its repository's root; None for other folders.

    A tree is a folder with all of the project's packages.
    """
    folder = folder.resolve()
    candidates = [folder]
    for parent in (folder, *folder.parents):
        if (parent / ".git").exists():
            candidates.append(parent)
            break
    return next((path for path in candidates if _is_tree(path)), None)


def choose_tree() -> Path:
    """Returns the tree that a command uses: the current folder's, or else the installed one."""
    return imported_tree() if is_pinned() else find_tree(Path()) or imported_tree()


def pin_sources(keep: Path = FOLDER) -> Path:
    """Copies the sources, and makes this process and its children import from the copy.

    Modules of the project must be imported again afterwards; references to them stay valid.

    Args:
        keep: holds the copies, one for each state of the sources.

    Returns:
        The folder of the copy.

    Raises:
        SourcesChanging: when they keep changing while they are copied.
    """
    copy = provide_copy(choose_tree(), keep.resolve(), own=find_own_code(Path()))
    os.environ[VARIABLE] = str(copy)
    use_tree(copy)
    return copy


def use_tree(tree: Path) -> None:
    """Makes this process, from now on, and its children import from a tree."""
    sys.path.insert(0, str(tree))
    others = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{tree}{os.pathsep}{others}" if others else str(tree)
    for name in [name for name in sys.modules if name.partition(".")[0] in PACKAGES]:
        del sys.modules[name]
    importlib.invalidate_caches()


def find_own_code(project: Path) -> dict[str, Path]:
    """Returns the sources of own code that a project's files or this command name, by path."""
    texts = [argument for argument in sys.argv if "python:" in argument]
    files = [project / "params.yaml", *sorted((project / "studies").glob("*.yaml"))]
    files += [Path(argument) for argument in sys.argv if argument.endswith(".yaml")]
    for file in files:
        with contextlib.suppress(OSError):
            texts.append(file.read_text(encoding="utf-8", errors="replace"))
    return list_sources(find_names("\n".join(texts)), project)


def _is_tree(folder: Path) -> bool:
    return all((folder / name / "__init__.py").is_file() for name in PACKAGES)


def provide_copy(tree: Path, keep: Path, *, own: Mapping[str, Path] = _NOTHING) -> Path:
    """Returns the folder of a copy that is kept until this process ends.

    Args:
        tree: holds the project's packages.
        keep: holds the copies.
        own: further files by their path in the copy.
    """
    content = _read_sources(tree, own)
    hasher = hashlib.sha256()
    for name, data in content.items():
        hasher.update(f"{name}\0{len(data)}\0".encode())
        hasher.update(data)
    copy = keep / hasher.hexdigest()[:16]
    keep.mkdir(parents=True, exist_ok=True)
    with _locked(keep / "lock"):
        if not copy.is_dir():
            _write(content, copy)
        _hold(copy)
        _remove_unused(keep)
    return copy


def _read_sources(tree: Path, own: Mapping[str, Path]) -> dict[str, bytes]:
    """Returns the content of all files of the packages by name, read at one moment."""
    for _ in range(_TRIES):
        try:
            before = _stat_sources(tree, own)
            content = {name: (own.get(name) or tree / name).read_bytes() for name in before}
            # A branch switched meanwhile would give a mixture of two versions.
            if _stat_sources(tree, own) == before:
                return content
        except FileNotFoundError:
            continue
    raise SourcesChanging(
        f"the sources in {tree} must not change while a run copies them. They changed in {_TRIES} "
        "tries. Run the same command again when they no longer change."
    )


def _stat_sources(tree: Path, own: Mapping[str, Path]) -> dict[str, tuple[int, int]]:
    paths = dict(own)
    for package in PACKAGES:
        for path in sorted((tree / package).rglob("*")):
            if "__pycache__" not in path.parts and path.is_file():
                paths[path.relative_to(tree).as_posix()] = path
    facts = {name: path.stat() for name, path in paths.items()}
    return {name: (each.st_mtime_ns, each.st_size) for name, each in facts.items()}


def _write(content: dict[str, bytes], copy: Path) -> None:
    partial = copy.with_name(f".{copy.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    for name, data in content.items():
        (partial / name).parent.mkdir(parents=True, exist_ok=True)
        (partial / name).write_bytes(data)
    # The copy never changes, so its byte code stays valid where Ray unpacks it.
    compileall.compile_dir(
        partial,
        quiet=2,
        stripdir=str(partial),
        prependdir=str(copy),
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    os.replace(partial, copy)


def hold_sources() -> None:
    """Keeps the copy that this process imports from until it ends."""
    _hold(imported_tree())


def _hold(copy: Path) -> None:
    # Never closed: other runs do not remove the copy while this process is alive.
    descriptor = os.open(_lock_of(copy), os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_SH)


def _remove_unused(keep: Path) -> None:
    for copy in [path for path in keep.iterdir() if path.is_dir()]:
        with open(_lock_of(copy), "a", encoding="ascii") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            shutil.rmtree(copy, ignore_errors=True)
            _lock_of(copy).unlink(missing_ok=True)


def _lock_of(copy: Path) -> Path:
    return copy.with_name(f"{copy.name}.lock")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path, "a", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
