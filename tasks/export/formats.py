"""Writes a trained model to a folder: as MLflow's pyfunc, as ONNX, or for torch alone."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from dml_core.config.loading import to_flat_dict
from dml_core.data.atomic_folder import folder_lock, replaced_folder
from dml_core.training.checkpoint import Checkpoint, load_checkpoint
from tasks.export.card import write_card
from tasks.export.onnx_program import write_onnx
from tasks.export.winner import ChosenModel
from tasks.tracking.model import PYFUNC_PACKAGES, save_pyfunc
from tasks.tracking.packing import list_requirements, pack_code, pack_model

Format = Literal["pyfunc", "onnx", "torch"]
FORMATS: tuple[str, ...] = get_args(Format)
MODEL_FOLDER = "model"
CODE_FOLDER = "embedding_model"
FACTS_FILE = "export.json"
CARD_FILE = "README.md"
WEIGHTS_FILE = "weights.pt"
CONFIG_FILE = "config.json"
_PACKAGES = {
    "pyfunc": PYFUNC_PACKAGES,
    "onnx": ("numpy", "onnxruntime", "pillow"),
    "torch": ("numpy", "pillow", "torch"),
}
_OPENING = '''"""Computes embeddings of images; see the model card README.md beside this folder."""

from pathlib import Path

from .loader import EmbeddingModel

__all__ = ["EmbeddingModel", "load_model"]


def load_model(folder=Path(__file__).parents[1] / "model"):
    """Returns the model of a folder; by default the one beside this package."""
    return EmbeddingModel(Path(folder))
'''


@dataclass(frozen=True)
class Export:
    """A written export."""

    folder: Path
    format: str
    model: str
    """Arm and seed."""
    onnx_difference: float | None
    """Largest difference of the ONNX outputs from torch's."""


def export_model(chosen: ChosenModel, folder: Path, *, format: str) -> Export:
    """Writes a model with its card to a folder, whole or not at all; replaces an earlier export.

    Raises:
        ValueError: for an unknown format, or a folder with other content.
    """
    if format not in FORMATS:
        raise ValueError(f"--format must be one of {', '.join(FORMATS)}. Got {format!r}.")
    _check_is_free(folder)
    checkpoint = load_checkpoint(chosen.checkpoint)
    with folder_lock(folder), replaced_folder(folder) as target:
        difference = _write_model(checkpoint, target, format)
        packages = list_requirements(*_PACKAGES[format])
        _write_text(target / "requirements.txt", "".join(f"{line}\n" for line in packages))
        _write_json(target / CONFIG_FILE, to_flat_dict(checkpoint.config))
        facts = chosen.collect_facts()
        card = write_card(chosen, facts, checkpoint, format=format, onnx_difference=difference)
        _write_text(target / CARD_FILE, card)
        _write_json(
            target / FACTS_FILE,
            {
                "format": format,
                "study": facts.study,
                "arm": facts.arm,
                "seed": facts.seed,
                "checkpoint": chosen.digest(),
                "data_hash": checkpoint.data_hash,
                "split_hash": checkpoint.split_hash,
                "onnx_difference": difference,
                "scores": {score.metric: score.value for score in facts.scores},
            },
        )
    return Export(folder, format, chosen.name, difference)


def default_folder(chosen: ChosenModel, *, format: str) -> Path:
    """Returns where a model is exported to unless a folder is named."""
    return chosen.context.sweep_folder.parent / "export" / f"{chosen.name}-{format}"


def _write_model(checkpoint: Checkpoint, target: Path, format: str) -> float | None:
    if format == "pyfunc":
        save_pyfunc(checkpoint, target / MODEL_FOLDER)
        return None
    pack_code(target, name=CODE_FOLDER, opening=_OPENING)
    if format == "onnx":
        return write_onnx(checkpoint, target / MODEL_FOLDER)
    import torch

    pack_model(checkpoint, target / MODEL_FOLDER)
    torch.save(checkpoint.selected_model(), target / WEIGHTS_FILE)
    return None


def _check_is_free(folder: Path) -> None:
    if not folder.exists() or (folder / FACTS_FILE).is_file():
        return
    if not folder.is_dir() or any(folder.iterdir()):
        raise ValueError(
            f"{folder} has other content, which an export would replace. Name a new folder with "
            "--output."
        )


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _write_json(path: Path, content: dict[str, Any]) -> None:
    _write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
