"""Loads a packed embedding model; MLflow packs this file, so it needs torch and numpy alone."""

# B = batch, C = channels, D = embedding dim, H = height, S = input size, W = width

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

PROGRAM_FILE = "program.pt2"
FACTS_FILE = "facts.json"


class EmbeddingModel:
    """Gives (B, D) float32 embeddings of images."""

    def __init__(self, folder: Path) -> None:
        facts = json.loads((folder / FACTS_FILE).read_text(encoding="utf-8"))
        self.channels: int = facts["channels"]
        self.size_px: int = facts["input_size_px"]
        self.takes_whole: bool = facts["evaluation_crop"] == "whole"
        self.batch_size: int = facts["batch_size"]
        self.program = torch.export.load(folder / PROGRAM_FILE).module()

    def predict(self, images: Any, params: dict[str, Any] | None = None) -> np.ndarray:
        """Returns (B, D) embeddings of uint8 images (B, H, W, C) or (B, C, H, W), from 0 to 255.

        Images of another size are cut and resized as the project's evaluation does it.
        """
        batch = torch.from_numpy(np.ascontiguousarray(self._to_channels_first(images)))
        with torch.no_grad():
            parts = [self.program(self._fit(part)) for part in torch.split(batch, self.batch_size)]
        embeddings: np.ndarray = torch.cat(parts).float().numpy()
        return embeddings

    def _to_channels_first(self, images: Any) -> np.ndarray:
        array = np.asarray(images)
        if array.ndim != 4 or array.dtype != np.uint8 or len(array) == 0:
            raise ValueError(
                "images must be uint8 with the shape (B, H, W, C) or (B, C, H, W) and one image "
                f"or more. Got {array.dtype} with the shape {array.shape}."
            )
        if array.shape[3] == self.channels:
            return array.transpose(0, 3, 1, 2)
        if array.shape[1] == self.channels:
            return array
        raise ValueError(
            f"images must have {self.channels} channel(s), as those that the model was trained "
            f"on, in the first or the last place. Got the shape {array.shape}."
        )

    def _fit(self, images: torch.Tensor) -> torch.Tensor:
        height, width = images.shape[2:]
        if not self.takes_whole:
            side = min(self.size_px, height, width)
            top, left = (height - side) // 2, (width - side) // 2
            images = images[:, :, top : top + side, left : left + side]
        if images.shape[2:] == (self.size_px, self.size_px):
            return images.contiguous()
        size = [self.size_px, self.size_px]
        return torch.nn.functional.interpolate(images, size, mode="bilinear", antialias=True)


def _load_pyfunc(data_path: str) -> EmbeddingModel:
    """Returns the model in a folder; MLflow looks for this name."""
    return EmbeddingModel(Path(data_path))
