"""Compares the features of our frozen trunk with those of a plain script, on the same files."""

import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from pytorch_metric_learning import losses
from torch import nn

from benchmarks.plain.frozen_trunk import compute_features, make_head, make_trunk, open_images
from dml_core.config import TrialConfig, load_trial_config
from dml_core.losses.registry import build_loss_from_config
from dml_core.models import build_model
from dml_core.models.weights import find_package_file

SIZE_PX, CLASSES, SAMPLES, DIM = 64, 2, 4, 16
PARAMS = [
    "data.image_size_px=64",
    "model.backbone=timm:tf_efficientnet_lite0",
    "model.weights=package:efficientnet_lite0",
    "model.pooling=avg",
    f"model.embedding_dim={DIM}",
]


def compare_features(*, last_block: bool) -> float:
    """Returns the relative difference of the first loss; our features are in half precision."""
    train = "from:blocks.6" if last_block else "none"
    params = Path(__file__).parents[1] / "params.yaml"
    config = load_trial_config(params, [*PARAMS, f"trunk.train={train}"])
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        pixels = _draw(Path(name))
        ours, theirs = _compute_losses(config, pixels, Path(name), last_block=last_block)
    return abs(ours - theirs) / abs(ours)


def _draw(folder: Path) -> np.ndarray:
    """Writes a few pictures and returns their pixels, in the order of the files."""
    size = (CLASSES * SAMPLES, SIZE_PX, SIZE_PX, 3)
    pixels = np.random.default_rng(0).integers(0, 256, size=size, dtype=np.uint8)
    for index, picture in enumerate(pixels):
        path = folder / str(index // SAMPLES) / f"{index}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(picture).save(path)
    return pixels


def _compute_losses(
    config: TrialConfig, pixels: np.ndarray, folder: Path, *, last_block: bool
) -> tuple[float, float]:
    model = build_model(config, in_channels=3)
    model.set_training(True, freeze_batch_norm=True)
    loss = build_loss_from_config(config.loss, num_classes=CLASSES, embedding_dim=DIM)
    kept = model.frozen_activations(torch.from_numpy(pixels).permute(0, 3, 1, 2)).half()
    frozen, learning = make_trunk(
        "tf_efficientnet_lite0", find_package_file(), last_block=last_block
    )
    images = open_images(folder, size_px=SIZE_PX, mean=[0.5] * 3, std=[0.5] * 3)
    features, labels = compute_features(frozen, images, workers=0)
    head = make_head(model.head.projection.weight.shape[1], DIM)
    head.load_state_dict(model.head.projection.state_dict())
    plain = losses.ProxyAnchorLoss(CLASSES, DIM, margin=0.1, alpha=32)
    with torch.no_grad():
        plain.proxies.copy_(loss.proxies)
        points = nn.functional.normalize(head(learning.eval()(features)))
        return float(loss(model.forward_from(kept), labels)), float(plain(points, labels))
