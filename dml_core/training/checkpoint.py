"""Checkpoints: written whole or not at all, and refused when damaged."""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dml_core.config import TrialConfig
from dml_core.models.weights import load_plain

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


class DamagedCheckpoint(ValueError):
    """A checkpoint cannot be trusted; the message names the file and what is wrong."""


@dataclass(frozen=True)
class Checkpoint:
    """Everything a trial needs to go on after an epoch as if it had never stopped.

    The random streams are named by seed and epoch, so these two numbers hold them, and the
    schedule is a function of the step.
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
    """Weights of the best epoch: only those that training moves."""
    in_channels: int = 3
    num_classes: int = 0
    label_scale: tuple[float, ...] = ()
    data_hash: str = ""
    split_hash: str = ""
    made_with: dict[str, str] = field(default_factory=dict)
    """Training code, libraries and kind of device, from `say_maker`; empty where unknown."""

    def selected_model(self) -> dict[str, Any]:
        """Returns the weights that the trial's result is made of."""
        if self.config.training.select == "last" or not self.best_model:
            return self.model
        return {**self.model, **self.best_model}

    @property
    def selected_epoch(self) -> int:
        """Which epoch the selected weights are of."""
        return self.epoch if self.config.training.select == "last" else self.best_epoch


def save_checkpoint(checkpoint: Checkpoint, path: Path) -> None:
    """Writes a checkpoint so that `path` holds the old or the new one, also after a crash."""
    content = _to_plain(checkpoint)
    content["digest"] = _digest(content)
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


def load_checkpoint(path: Path) -> Checkpoint:
    """Reads a checkpoint; runs no code from it.

    Raises:
        FileNotFoundError: when there is none.
        DamagedCheckpoint: when its content does not match its digest or is no checkpoint.
    """
    if not path.is_file():
        raise FileNotFoundError(f"checkpoint {path} does not exist.")
    try:
        content = load_plain(path)
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
        # Whoever knows the format can compute a digest: only what is inside can be believed.
        reason = str(error).splitlines()[0][:200]
        raise DamagedCheckpoint(f"checkpoint {path} is of another form: {reason}") from error


def load_newest_checkpoint(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """Returns the newest whole checkpoint of a folder, and a message for each damaged one."""
    refusals: list[str] = []
    for path in sorted(folder.glob("epoch_*.pt"), reverse=True):
        try:
            return load_checkpoint(path), refusals
        except DamagedCheckpoint as error:
            refusals.append(str(error))
    return None, refusals


@contextmanager
def weights_must_fit() -> Iterator[None]:
    """Turns what torch says of weights that do not fit into a refusal of the checkpoint."""
    try:
        yield
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise DamagedCheckpoint(
            f"the checkpoint's weights are not those of its own configuration: {reason}"
        ) from error


def checkpoint_path(folder: Path, epoch: int) -> Path:
    """Returns the file of an epoch's checkpoint."""
    return folder / f"epoch_{epoch:06d}.pt"


def remove_old_checkpoints(folder: Path, *, keep: int) -> None:
    """Removes all but the newest checkpoints, and what a killed writer left behind."""
    for path in sorted(folder.glob("epoch_*.pt"), reverse=True)[keep:]:
        path.unlink(missing_ok=True)
    for path in folder.glob(".*.partial"):
        path.unlink(missing_ok=True)


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
            raise TypeError(f"{name} holds other things than tensors by name")
    texts = [text for pair in values.get("made_with", {}).items() for text in pair]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("made_with holds other things than texts by name")
    if not all(isinstance(scale, float) for scale in values["label_scale"]):
        raise TypeError("label_scale holds other things than numbers")
    if min(values["epoch"], values["best_epoch"], values["num_classes"]) < 0:
        raise ValueError("a count is below zero")
    if values["in_channels"] not in (1, 3):
        raise ValueError(f"in_channels is {values['in_channels']}")


def _digest(content: dict[str, Any]) -> str:
    """Returns a hash over every tensor's bytes and every other value."""
    hasher = hashlib.sha256()
    hasher.update(json.dumps(_describe(content, hasher), sort_keys=True).encode())
    return hasher.hexdigest()


def _describe(value: Any, hasher: "hashlib._Hash") -> Any:
    """Returns a JSON-like stand-in of a value; tensors go into the hash by their bytes."""
    if isinstance(value, Tensor):
        data = value.detach().cpu().contiguous()
        # Read in place: a million proxies need no second copy for that.
        hasher.update(data.reshape(-1).view(torch.uint8).numpy().data)
        return ["tensor", str(data.dtype), list(data.shape)]
    if isinstance(value, dict):
        return [[str(key), _describe(inner, hasher)] for key, inner in value.items()]
    if isinstance(value, (list, tuple)):
        return [_describe(inner, hasher) for inner in value]
    return repr(value)
