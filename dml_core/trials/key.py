"""A trial's key: everything that decides its numbers.

These are the configuration, the training code, the data and their split, the versions of the
numerical libraries and the kind of device. Trials with equal keys have equal numbers, bit for bit;
a trial with another key is stale and is never mixed with those of this one.
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

if TYPE_CHECKING:
    import torch

FREE_KEYS = frozenset(
    {
        "training.device",
        "training.loader_workers",
        "data.prepared_root",
        "data.raw",
        "data.on_leak",
        "evaluation.clustering",
        "evaluation.kmeans_iterations",
        "evaluation.kmeans_restarts",
        "evaluation.binary",
        "evaluation.occlusion",
    }
)
"""Where a trial runs, where its files lie, and what only the test is judged by: no number of a
training or its validation depends on these. The kind of device counts, its name does not."""

# What a trial's numbers depend on; studies and statistics only read them.
_PARTS = ("config", "data", "evaluation", "losses", "models", "samplers", "training", "seeding.py")
_INPUT_PARTS = ("data", "models", "seeding.py")
_LIBRARIES = {
    "torch": ("torch",),
    "torchvision": ("torchvision",),
    "timm": ("timm",),
    "faiss": ("faiss-cpu", "faiss-gpu", "faiss-gpu-cuvs"),
}
"""By the name that is shown: the packages that may bring a library."""


@dataclass(frozen=True)
class TrialKey:
    """What decides a trial's numbers, except for the device, which its worker knows."""

    config: str
    """Digest of the configuration without `FREE_KEYS`."""
    code: str
    """From `hash_training_code`."""
    data: str
    """Version of the data and their split; empty where it is unknown."""
    libraries: str
    """From `read_libraries`, as `name version` in their order."""


def make_key(
    config: TrialConfig | Mapping[str, Any], *, code: str, data: str, libraries: Mapping[str, str]
) -> TrialKey:
    """Returns the key of a trial from its configuration, or from what a spec.json holds of it."""
    return TrialKey(digest_numbers(config), code, data, say_libraries(libraries))


def digest_numbers(config: TrialConfig | Mapping[str, Any]) -> str:
    """Returns a digest that is equal for configurations that make the same numbers.

    A stored configuration is not read into a TrialConfig, which would take longer than the rest.
    """
    plain = config.model_dump(mode="json") if isinstance(config, TrialConfig) else config
    # A key that is not there and one without a value are the same.
    kept = {k: v for k, v in flatten(plain).items() if k not in FREE_KEYS and v is not None}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def have_equal_numbers(one: TrialConfig, other: TrialConfig) -> bool:
    """Returns whether two configurations make the same numbers on the same data."""
    return one == other or digest_numbers(one) == digest_numbers(other)


@cache
def hash_training_code() -> str:
    """Returns a hash over the sources that a trial's numbers depend on.

    It is that of the sources which this process imports, as they were when it first asked. Words
    do not count: docstrings, comments and the layout of lines leave the hash as it is.
    """
    return _hash_code(_PARTS)


@cache
def hash_input_code() -> str:
    """Returns `hash_training_code` of the part that makes inputs and networks, without losses."""
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
    """Returns the syntax tree of a module as text, without docstrings and places."""
    tree = ast.parse(source)
    _remove_texts(tree)
    return ast.dump(tree)


def _remove_texts(node: ast.AST) -> None:
    """Removes the strings that stand alone as statements: they have no effect."""
    # Expressions hold no statements, so only what has blocks is gone through.
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
    """Returns the installed versions of the libraries that compute, without importing them."""
    return {name: _find_version(packages) for name, packages in _LIBRARIES.items()}


def _find_version(packages: tuple[str, ...]) -> str:
    for package in packages:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return "none"


def say_libraries(libraries: Mapping[str, str]) -> str:
    """Returns versions as a text."""
    return ", ".join(f"{name} {found}" for name, found in libraries.items())


def say_other_libraries(stored: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, str]:
    """Returns, as texts, the versions of `stored` that are others now, and what they are now."""
    names = [name for name in now if stored.get(name) != now[name]]
    then = {name: stored.get(name, "unknown") for name in names}
    return say_libraries(then), say_libraries({name: now[name] for name in names})


def say_maker(device: "torch.device") -> dict[str, str]:
    """Returns what of a key is this process's: its code, libraries and kind of device."""
    return {
        "training code": hash_training_code(),
        **read_libraries(),
        "device": describe_device(device),
    }


def describe_device(device: "torch.device") -> str:
    """Returns the kind of a device: a CPU's level of instructions, or a GPU's name."""
    import torch

    if device.type == "cuda":
        return f"cuda {torch.cuda.get_device_name(device)}"
    if device.type == "cpu":
        return f"cpu {torch.backends.cpu.get_cpu_capability()}"
    return device.type


@cache
def expect_device(name: str, *, is_here: bool) -> str:
    """Returns as much of the kind of device as can be told before a worker has it.

    Args:
        name: of `training.device`.
        is_here: whether trials run on this machine; the nodes of a cluster have other devices.

    Returns:
        All of it for a CPU of this machine. The name of a GPU stays open, since asking for it would
        take memory of the GPU, and on a cluster only what `training.device` says is known.
    """
    import torch

    if name == "auto":
        if not is_here:
            return ""
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind = name.partition(":")[0]
    return describe_device(torch.device("cpu")) if is_here and kind == "cpu" else kind


def is_expected_device(found: str, expected: str) -> bool:
    """Returns whether a kind of device is the one that `expect_device` gave, as far as it goes."""
    return not expected or found == expected or found.startswith(f"{expected} ")
