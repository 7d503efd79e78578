"""Puts a model on its device, in the memory layout that convolves fastest there."""

import torch

from dml_core.models.embedding_model import EmbeddingModel


def place_model(
    model: EmbeddingModel, *, device: torch.device, channels_last: bool
) -> EmbeddingModel:
    """Moves the model and returns it; feature maps take their layout from the first weights."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model.to(device)
    model.to(memory_format=layout)
    return model
