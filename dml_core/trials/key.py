"""A trial's key: a hash over everything that decides its numbers.

These are the resolved configuration, the training code, the data and their split, the versions of
the numerical libraries and the kind of device. Trials with equal keys have equal numbers, bit for
bit. The key names the trial's folder, tags its MLflow run and guards its checkpoints.
"""

import ast
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dml_core.config import TrialConfig
from dml_core.config.loading import flatten
from dml_core.devices import describe_device
from dml_core.own_code import hash_sources, is_own

if TYPE_CHECKING:
    import torch

FREE_KEYS = frozenset(
    {
        "training.device",
        "training.loader_workers",
        "trial.gpus_per_worker",
        "data.prepared_root",
        "data.raw",
        "data.on_leak",
        "evaluation.clustering",
        "evaluation.kmeans_iterations",
        "evaluation.kmeans_restarts",
        "evaluation.binary",
        "evaluation.match_rates",
        "evaluation.occlusion",
        "evaluation.corruptions",
        "evaluation.severities",
        "evaluation.truncate_at",
    }
)
"""Where a trial runs, where its files are, and what only the test uses: no number of a training or
its validation depends on these keys. The kind of device counts, its name does not."""

# The code that a trial's numbers depend on. Studies and statistics only read the numbers.
_PARTS = (
    *("config", "data", "evaluation", "losses", "models", "samplers", "training"),
    *("devices.py", "own_code.py", "seeding.py"),
)
_INPUT_PARTS = ("data", "models", "seeding.py")
_LIBRARIES = {
    "torch": ("torch",),
    "torchvision": ("torchvision",),
    "timm": ("timm",),
    "peft": ("peft",),
    "faiss": ("faiss-cpu", "faiss-gpu", "faiss-gpu-cuvs"),
}
"""For each library, the packages that may provide it."""


@dataclass(frozen=True)
class KeyParts:
    """Everything that decides a trial's numbers, in a form that people can read and compare."""

    config: Mapping[str, Any]
    """The resolved configuration by dotted key, without `FREE_KEYS` and without null values."""
    code: str
    """From `hash_training_code` and `add_own_code`."""
    data: str
    """Version of the data and their split; empty if unknown."""
    libraries: Mapping[str, str]
    """From `read_libraries`."""
    device: str
    """Kind of device, as far as it is known; empty if unknown."""


def make_parts(
    config: TrialConfig | Mapping[str, Any],
    *,
    code: str,
    data: str,
    libraries: Mapping[str, str],
    device: str,
) -> KeyParts:
    """Returns the parts of a trial's key from its configuration, or from a stored one."""
    plain = config.model_dump(mode="json") if isinstance(config, TrialConfig) else config
    flat = flatten(plain)
    # A key that is missing and one without a value are the same.
    kept = {k: v for k, v in flat.items() if k not in FREE_KEYS and v is not None}
    return KeyParts(kept, code, data, dict(libraries), device)


def compute_key(parts: KeyParts) -> str:
    """Returns a trial's key: equal for trials with equal numbers, and safe as a folder name."""
    return hashlib.sha256(json.dumps(vars(parts), sort_keys=True).encode()).hexdigest()[:16]


def own_parts(config: TrialConfig, *, data: str, device: "torch.device") -> KeyParts:
    """Returns the parts of a trial that this process trains on a device."""
    return make_parts(
        config,
        code=add_own_code(hash_training_code(), config),
        data=data,
        libraries=read_libraries(),
        device=describe_device(device),
    )


def list_differences(then: KeyParts, now: KeyParts) -> list[str]:
    """Returns a line for each part of a key that has changed; none for equal keys."""
    pairs: list[tuple[str, Any, Any]] = [
        (name, then.config.get(name), now.config.get(name))
        for name in sorted({*then.config, *now.config})
    ]
    pairs.append(("data and split", then.data, now.data))
    pairs.append(("training code", then.code, now.code))
    pairs += [
        (name, then.libraries.get(name), now.libraries.get(name))
        for name in dict.fromkeys([*now.libraries, *then.libraries])
    ]
    pairs.append(("device", then.device, now.device))
    return [
        f"{name}: {before!r} then, {after!r} now"
        for name, before, after in pairs
        if before != after
    ]


def digest_config(config: TrialConfig) -> str:
    """Returns a digest that is equal for configurations with equal numbers on equal data."""
    parts = make_parts(config, code="", data="", libraries={}, device="")
    return compute_key(parts)


@cache
def hash_training_code() -> str:
    """Returns a hash over the sources that a trial's numbers depend on.

    The sources are those that this process imports, as they were at the first call. Docstrings,
    comments and the layout of lines do not count.
    """
    return _hash_code(_PARTS)


def add_own_code(code: str, config: TrialConfig) -> str:
    """Returns a hash of code, followed by that of the project's own code that a trial names.

    Without own code it is the hash itself.
    """
    own = hash_sources(list_own_names(config))
    return f"{code}+{own}" if own else code


def list_own_names(config: TrialConfig) -> list[str]:
    """Returns the names of own code that decide the numbers of a training."""
    # Not that of the data: their reader counts by what it read.
    names = (config.loss.name, config.sampler.name, config.model.backbone)
    return [name for name in names if is_own(name)]


@cache
def hash_input_code() -> str:
    """Returns a hash over the sources that make inputs and networks, without losses."""
    return _hash_code(_INPUT_PARTS)


def _hash_code(parts: tuple[str, ...]) -> str:
    root = Path(__file__).parents[1]
    hasher = hashlib.sha256()
    for part in parts:
        path = root / part
        files = [path] if path.is_file() else sorted(path.rglob("*.py"))
        for file in files:
            hasher.update(f"{file.relative_to(root).as_posix()}\0".encode())
            hasher.update(_describe_code(file.read_bytes()).encode())
    return hasher.hexdigest()[:16]


def _describe_code(source: bytes) -> str:
    """Returns the syntax tree of a module as text, without docstrings and positions."""
    tree = ast.parse(source)
    _remove_texts(tree)
    return ast.dump(tree)


def _remove_texts(node: ast.AST) -> None:
    """Removes strings that are statements by themselves: they have no effect."""
    # Expressions contain no statements, so only nodes with blocks are visited.
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            block[:] = [line for line in block if not _is_text(line)]
            for line in block:
                _remove_texts(line)


def _is_text(line: ast.AST) -> bool:
    value = line.value if isinstance(line, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


@cache
def read_libraries() -> dict[str, str]:
    """Returns the installed versions of the numerical libraries, without importing them."""
    return {name: _find_version(packages) for name, packages in _LIBRARIES.items()}


def _find_version(packages: tuple[str, ...]) -> str:
    for package in packages:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return "none"


def say_libraries(libraries: Mapping[str, str]) -> str:
    """Returns versions as text."""
    return ", ".join(f"{name} {found}" for name, found in libraries.items())


def say_other_libraries(stored: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, str]:
    """Returns, as texts, the stored versions that differ now, and the versions of now."""
    names = [name for name in now if stored.get(name) != now[name]]
    then = {name: stored.get(name, "unknown") for name in names}
    return say_libraries(then), say_libraries({name: now[name] for name in names})
