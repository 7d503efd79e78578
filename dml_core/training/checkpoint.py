"""Checkpoints: written atomically, and refused when damaged."""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dml_core.config import TrialConfig
from dml_core.models.weights import load_plain
from dml_core.training.errors import DamagedCheckpoint

FORMAT = "dml-checkpoint-1"
_TYPES: dict[str, type | tuple[type, ...]] = {
    "config": str,
    "epoch": int,
    "model": dict,
    "loss": dict,
    "optimizer": dict,
    "best_epoch": int,
    "best_score": (int, float),
    "best_model": dict,
    "in_channels": int,
    "num_classes": int,
    "label_scale": (list, tuple),
    "data_hash": str,
    "split_hash": str,
    "made_with": dict,
}


@dataclass(frozen=True)
class Checkpoint:
    """The state from which a trial resumes after an epoch, bit for bit.

    Seed and epoch determine the random streams, and the step determines the learning rate, so
    neither generators nor a scheduler are stored.
    """

    config: TrialConfig
    epoch: int
    """Finished epochs."""
    model: dict[str, Any]
    loss: dict[str, Any]
    optimizer: dict[str, Any]
    best_epoch: int = 0
    best_score: float = float("-inf")
    best_model: dict[str, Any] = field(default_factory=dict)
    """Weights of the best epoch, without the frozen ones."""
    in_channels: int = 3
    num_classes: int = 0
    label_scale: tuple[float, ...] = ()
    data_hash: str = ""
    split_hash: str = ""
    made_with: dict[str, str] = field(default_factory=dict)
    """Training code, libraries and kind of device, from `describe_maker`; empty if unknown."""

    def selected_model(self) -> dict[str, Any]:
        """Returns the weights that the trial is judged by."""
        if self.config.training.select == "last" or not self.best_model:
            return self.model
        return {**self.model, **self.best_model}

    @property
    def selected_epoch(self) -> int:
        """The epoch of the selected weights."""
        return self.epoch if self.config.training.select == "last" else self.best_epoch


def save_checkpoint(checkpoint: Checkpoint, path: Path) -> None:
    """Writes a checkpoint atomically: after a crash `path` holds the old or the new one."""
    content = _add_digest(checkpoint)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".partial")
    try:
        with os.fdopen(descriptor, "wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def checkpoint_to_bytes(checkpoint: Checkpoint) -> bytes:
    """Returns the content of a checkpoint's file."""
    file = BytesIO()
    torch.save(_add_digest(checkpoint), file)
    return file.getvalue()


def load_checkpoint(path: Path) -> Checkpoint:
    """Reads a checkpoint; runs no code from it.

    Raises:
        FileNotFoundError: when there is none.
        DamagedCheckpoint: when the file is no checkpoint or does not match its digest.
    """
    if not path.is_file():
        raise FileNotFoundError(f"checkpoint {path} does not exist.")
    return _read(path, str(path))


def checkpoint_from_bytes(content: bytes, name: str) -> Checkpoint:
    """Returns the checkpoint in the content of its file; runs no code from it.

    Args:
        content: of the file.
        name: its address, for messages.

    Raises:
        DamagedCheckpoint: when it is no checkpoint or does not match its digest.
    """
    return _read(BytesIO(content), name)


def _read(file: Path | BytesIO, path: str) -> Checkpoint:
    try:
        content = load_plain(file)
        digest = content.pop("digest")
        is_whole = content["format"] == FORMAT and digest == _digest(content)
    except Exception as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise DamagedCheckpoint(f"checkpoint {path} cannot be read: {reason}") from error
    if not is_whole:
        raise DamagedCheckpoint(f"checkpoint {path} is damaged: its digest does not match.")
    try:
        return _from_plain(content)
    except (TypeError, ValueError, KeyError) as error:
        # An attacker can compute a valid digest, so the content is validated too.
        reason = str(error).splitlines()[0][:200]
        raise DamagedCheckpoint(f"checkpoint {path} has invalid content: {reason}") from error


def load_newest_checkpoint(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """Returns the newest intact checkpoint of a folder, and a message for each damaged one."""
    refusals: list[str] = []
    for path in sorted(folder.glob("epoch_*.pt"), reverse=True):
        try:
            return load_checkpoint(path), refusals
        except DamagedCheckpoint as error:
            refusals.append(str(error))
    return None, refusals


@contextmanager
def weights_must_fit() -> Iterator[None]:
    """Converts torch's errors about weights that do not fit to DamagedCheckpoint."""
    try:
        yield
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise DamagedCheckpoint(
            f"the weights of the checkpoint do not fit its configuration: {reason}"
        ) from error


def checkpoint_path(folder: Path, epoch: int) -> Path:
    """Returns the path of an epoch's checkpoint."""
    return folder / f"epoch_{epoch:06d}.pt"


def remove_old_checkpoints(folder: Path, *, keep: int) -> None:
    """Removes all but the newest checkpoints, and partial files of a killed writer."""
    for path in sorted(folder.glob("epoch_*.pt"), reverse=True)[keep:]:
        path.unlink(missing_ok=True)
    for path in folder.glob(".*.partial"):
        path.unlink(missing_ok=True)


def _add_digest(checkpoint: Checkpoint) -> dict[str, Any]:
    content = _to_plain(checkpoint)
    content["digest"] = _digest(content)
    return content


def _to_plain(checkpoint: Checkpoint) -> dict[str, Any]:
    content: dict[str, Any] = {"format": FORMAT}
    for name in checkpoint.__dataclass_fields__:
        content[name] = getattr(checkpoint, name)
    content["config"] = checkpoint.config.model_dump_json()
    return content


def _from_plain(content: dict[str, Any]) -> Checkpoint:
    values = {key: value for key, value in content.items() if key != "format"}
    _check_types(values)
    config = TrialConfig.model_validate_json(values.pop("config"))
    values["label_scale"] = tuple(values["label_scale"])
    return Checkpoint(config=config, **values)


def _check_types(values: dict[str, Any]) -> None:
    for name, wanted in _TYPES.items():
        if name in values and not isinstance(values[name], wanted):
            raise TypeError(f"{name} is a {type(values[name]).__name__}")
    for name in ("model", "best_model", "loss"):
        tensors = values.get(name, {})
        if not all(isinstance(key, str) and isinstance(t, Tensor) for key, t in tensors.items()):
            raise TypeError(f"{name} must map names to tensors")
    texts = [text for pair in values.get("made_with", {}).items() for text in pair]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("made_with must map names to texts")
    if not all(isinstance(scale, float) for scale in values["label_scale"]):
        raise TypeError("label_scale must hold numbers")
    if min(values["epoch"], values["best_epoch"], values["num_classes"]) < 0:
        raise ValueError("a count is below zero")
    if values["in_channels"] not in (1, 3):
        raise ValueError(f"in_channels is {values['in_channels']}")


def _digest(content: dict[str, Any]) -> str:
    """Returns a hash over the bytes of every tensor and over every other value."""
    hasher = hashlib.sha256()
    hasher.update(json.dumps(_describe(content, hasher), sort_keys=True).encode())
    return hasher.hexdigest()


def _describe(value: Any, hasher: "hashlib._Hash") -> Any:
    """Returns a JSON-like description of a value; the bytes of tensors go into the hash."""
    if isinstance(value, Tensor):
        data = value.detach().cpu().contiguous()
        # Hashed in place: a million proxies need no copy.
        hasher.update(data.reshape(-1).view(torch.uint8).numpy().data)
        return ["tensor", str(data.dtype), list(data.shape)]
    if isinstance(value, dict):
        return [[str(key), _describe(inner, hasher)] for key, inner in value.items()]
    if isinstance(value, (list, tuple)):
        return [_describe(inner, hasher) for inner in value]
    return repr(value)
