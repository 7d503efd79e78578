"""Reads the tensors of a checkpoint file without ever running code from it."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import Tensor

from dml_core.models.plain_loading import load_plain
from dml_core.models.problems import ModelError

StateDict = dict[str, Tensor]

_WRAPPERS = ("state_dict", "model")


def read_state_dict(path: Path) -> StateDict:
    """Returns the tensors of a file by name.

    The file is a `.safetensors`, or what torch.save made of a state_dict or of a mapping that
    holds one as `state_dict` or `model`. Values that are no tensors are left out.

    Raises:
        ModelError: where the file is missing, is no such file, or holds code.
    """
    if not path.is_file():
        raise ModelError(
            f"model.weights must be none, imagenet, package:efficientnet_lite0 or a file. "
            f"Got {str(path)!r}, which is {'a folder' if path.is_dir() else 'not there'}. "
            "Correct the path, or choose one of the others."
        )
    content = _read_content(path)
    tensors = {name: value for name, value in content.items() if isinstance(value, Tensor)}
    if not tensors:
        found = ", ".join(repr(name) for name in list(content)[:10]) or "nothing"
        raise _not_a_checkpoint(path, f"it holds no tensors, but {found}")
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
        raise _not_a_checkpoint(path, f"it holds a {type(content).__name__}, no names of tensors")
    return content


# All trials of a sweep begin with the same weights, and a worker trains many.
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
        f"model.weights must be a file of tensors by name, because nothing else is read from a "
        f"checkpoint and no code is run. Got {str(path)!r}: {reason}. "
        "Save it with torch.save(model.state_dict(), path)."
    )
