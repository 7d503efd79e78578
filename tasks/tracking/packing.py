"""Packs a trained model for use without this project: its program, its facts and its loader.

The program is exported with its weights: loading it runs no pickled code.
"""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from dml_core.data import image_decoding as decoding
from dml_core.data.packing import choices_of
from dml_core.training.checkpoint import Checkpoint
from tasks.tracking import embedding_loader as loader

if TYPE_CHECKING:
    import torch


def pack_model(checkpoint: Checkpoint, folder: Path) -> None:
    """Writes the exported program and the facts that its loader needs."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    torch.export.save(export_program(checkpoint), folder / loader.PROGRAM_FILE)
    write_facts(checkpoint, folder)


def export_program(checkpoint: Checkpoint) -> "torch.export.ExportedProgram":
    """Returns the network as a program: (B, C, S, S) uint8 pixels to (B, D) embeddings, any B."""
    import torch

    from dml_core.measures.model_scores import load_trained_model

    model = load_trained_model(checkpoint).requires_grad_(False)
    size = checkpoint.config.input_size_px
    # Two images: torch would specialise the program to a batch of one.
    images = torch.zeros((2, checkpoint.in_channels, size, size), dtype=torch.uint8)
    shapes = ({0: torch.export.Dim("batch", min=1)},)
    return torch.export.export(model, (images,), dynamic_shapes=shapes)


def write_facts(checkpoint: Checkpoint, folder: Path) -> None:
    """Writes how images are prepared for the program, and how its embeddings are compared."""
    config = checkpoint.config
    facts = {
        "preparation": asdict(choices_of(config.data)),
        "input_size_px": config.input_size_px,
        "evaluation_crop": config.augmentation.evaluation_crop,
        "batch_size": config.evaluation.batch_size,
        "data_hash": checkpoint.data_hash,
        "embedding_dim": config.model.embedding_dim,
        "metric": config.retrieval_metric,
    }
    (folder / loader.FACTS_FILE).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def pack_code(folder: Path, *, name: str = "", opening: str = "") -> Path:
    """Writes the loader and the image decoding as a package; returns its folder.

    Args:
        folder: gets the package.
        name: of the package; by default one after its content, because a process may load two
            models and Python imports a name once.
        opening: the content of its `__init__.py`.
    """
    package = folder / (name or name_package())
    package.mkdir(parents=True)
    for file, text in {**_read_code(), "__init__.py": opening.encode()}.items():
        (package / file).write_bytes(text)
    return package


def name_package() -> str:
    """Returns the name of the package with the loader and the image decoding."""
    digest = hashlib.sha256(b"\0".join(_read_code().values())).hexdigest()[:12]
    return f"dml_embedding_{digest}"


def _read_code() -> dict[str, bytes]:
    sources = {"loader.py": loader.__file__, "image_decoding.py": decoding.__file__}
    return {name: Path(path).read_bytes() for name, path in sources.items()}


def list_requirements(*packages: str) -> list[str]:
    """Returns packages with the versions that are installed here."""
    from importlib.metadata import version

    # No index has a local version such as 2.14.1+cpu.
    return [f"{name}=={version(name).split('+')[0]}" for name in packages]
