"""Runs a model over images and gives their embeddings."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from dml_core.data.inputs import Inputs, plain_batches


def embed(
    network: Callable[[Tensor], Tensor],
    inputs: Inputs,
    *,
    batch_size: int,
    device: torch.device,
    workers: int = 0,
    use_bfloat16: bool = False,
    change: Callable[[Tensor], Tensor] | None = None,
) -> np.ndarray:
    """Returns the (N, D) float32 embeddings of all images, in their order.

    Args:
        network: from a batch of inputs to embeddings; the caller has put it in evaluation mode.
        inputs: where the inputs come from.
        batch_size: images embedded at once.
        device: where the network is.
        workers: threads that read ahead.
        use_bfloat16: run the network under autocast.
        change: applied to each batch of inputs first, such as an occlusion.
    """
    parts = []
    with torch.inference_mode():
        for _, batch in plain_batches(inputs, batch_size=batch_size, workers=workers):
            moved = batch.to(device, non_blocking=True)
            changed = change(moved) if change else moved
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=use_bfloat16):
                parts.append(network(changed).float().cpu().numpy())
    return np.concatenate(parts)


def measure_spread(embeddings: np.ndarray) -> float:
    """Returns how far embeddings lie apart, relative to their length; 0 when all are alike."""
    if not np.isfinite(embeddings).all():
        return float("nan")
    center = embeddings.mean(axis=0, dtype=np.float64)
    deviation = np.sqrt(((embeddings - center) ** 2).sum(axis=1).mean())
    length = np.sqrt((embeddings.astype(np.float64) ** 2).sum(axis=1).mean())
    return float(deviation / length) if length > 0 else 0.0
