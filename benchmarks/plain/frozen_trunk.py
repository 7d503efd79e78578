"""Trains on top of a frozen pretrained trunk with pytorch-metric-learning, as a plain script does.

Without --features the trunk runs in every epoch; with it, the output of the frozen part is computed
once, written to that file and read from it. --last-block also trains the last block.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import timm
import torch
from pytorch_metric_learning import losses, samplers
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchvision import transforms
from torchvision.datasets import ImageFolder


def make_trunk(name: str, weights: Path | None, *, last_block: bool) -> tuple[nn.Module, nn.Module]:
    """Returns the frozen blocks and the trained ones, with pooling."""
    model = timm.create_model(name, num_classes=0)
    if weights is not None:
        stored = torch.load(weights, weights_only=True)
        names = [*model.state_dict(), "classifier.weight", "classifier.bias"]
        renamed = dict(zip(names, stored.values(), strict=True))
        model.load_state_dict({key: renamed[key] for key in model.state_dict()})
    if name.startswith("resnet"):
        first = [model.conv1, model.bn1, model.act1, model.maxpool, *_layers(model)]
        last: list[nn.Module] = [model.layer4]
    else:
        first = [model.conv_stem, model.bn1, *model.blocks[:-1]]
        last = [model.blocks[-1], model.conv_head, model.bn2]
    pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    if last_block:
        frozen, learning = nn.Sequential(*first), nn.Sequential(*last, pool)
    else:
        frozen, learning = nn.Sequential(*first, *last, pool), nn.Sequential()
    frozen.requires_grad_(False)
    return frozen.eval(), learning


def _layers(model: nn.Module) -> list[nn.Module]:
    return [getattr(model, f"layer{number}") for number in (1, 2, 3)]


def make_head(num_features: int, embedding_dim: int) -> nn.Linear:
    """Returns the projection to the embedding."""
    head = nn.Linear(num_features, embedding_dim)
    nn.init.kaiming_normal_(head.weight, mode="fan_out")
    nn.init.zeros_(head.bias)
    return head


def open_images(folder: Path, *, size_px: int, mean: float | list[float], std: object) -> Dataset:
    """Returns the pictures of a folder, centre-cropped to a square and normalised."""
    steps = [transforms.CenterCrop(size_px), transforms.ToTensor(), transforms.Normalize(mean, std)]
    return ImageFolder(folder, transforms.Compose(steps))


def _open(options: argparse.Namespace, part: str) -> Dataset:
    mean, std = ([0.5] * 3, [0.5] * 3)
    if options.trunk.startswith("resnet"):
        mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    return open_images(options.images / part, size_px=options.size_px, mean=mean, std=std)


def compute_features(frozen: nn.Module, images: Dataset, *, workers: int) -> tuple[Tensor, Tensor]:
    """Returns the output of the frozen part for all images, and their labels."""
    parts = []
    with torch.inference_mode():
        for batch, labels in DataLoader(images, batch_size=64, num_workers=workers):
            parts.append((frozen(batch), labels))
    features, labels = (torch.cat(part) for part in zip(*parts, strict=True))
    return features, labels


def _read_features(options: argparse.Namespace, frozen: nn.Module) -> list[Dataset]:
    """Returns both sets from the file; the first call writes it."""
    if not options.features.exists():
        content = {}
        for part in ("train", "validation"):
            images = _open(options, part)
            features, labels = compute_features(frozen, images, workers=options.loader_workers)
            content |= {part: features.half().numpy(), f"{part}_labels": labels.numpy()}
        np.savez(options.features, **content)
    with np.load(options.features) as stored:
        return [
            TensorDataset(
                torch.from_numpy(stored[part]).float(), torch.from_numpy(stored[f"{part}_labels"])
            )
            for part in ("train", "validation")
        ]


def train(options: argparse.Namespace) -> dict[str, object]:
    """Trains, validates after each epoch, and returns the scores and the seconds of each epoch."""
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    frozen, learning = make_trunk(options.trunk, options.weights, last_block=options.last_block)
    if options.features:
        sets, before, workers = _read_features(options, frozen), nn.Identity(), 0
    else:
        sets = [_open(options, part) for part in ("train", "validation")]
        before, workers = frozen, options.loader_workers
    head = make_head(options.num_features, options.embedding_dim)
    targets = _targets_of(sets[0])
    loss = losses.ProxyAnchorLoss(len(set(targets)), options.embedding_dim, margin=0.1, alpha=32)
    size = options.classes_per_batch * options.samples_per_class
    sampler = samplers.MPerClassSampler(
        targets, options.samples_per_class, size, length_before_new_iter=len(targets)
    )
    batches = DataLoader(sets[0], size, sampler=sampler, num_workers=workers, drop_last=True)
    validation = DataLoader(sets[1], batch_size=64, num_workers=workers)
    rate = options.learning_rate
    groups = [
        {"params": [*learning.parameters(), *head.parameters()], "lr": rate},
        {"params": loss.parameters(), "lr": 10 * rate},
    ]
    optimizer = torch.optim.AdamW(groups, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs * len(batches))
    scores, seconds = [], []
    for _ in range(options.run_epochs or options.epochs):
        started = time.perf_counter()
        # Batch norms keep the statistics of ImageNet.
        learning.eval()
        for inputs, labels in batches:
            with torch.no_grad():
                activations = before(inputs)
            optimizer.zero_grad()
            loss(nn.functional.normalize(head(learning(activations))), labels).backward()
            optimizer.step()
            schedule.step()
        scores.append(_validate(nn.Sequential(before, learning, head), validation))
        seconds.append(time.perf_counter() - started)
    torch.save(head.state_dict(), options.output.with_suffix(".pt"))
    return {"recall_at_1": scores, "epoch_seconds": seconds}


def _targets_of(images: Dataset) -> list[int]:
    if isinstance(images, TensorDataset):
        listed: list[int] = images.tensors[1].tolist()
        return listed
    assert isinstance(images, ImageFolder)
    return list(images.targets)


def _validate(network: nn.Module, batches: DataLoader) -> float:
    with torch.inference_mode():
        embedded = [(nn.functional.normalize(network(x)), labels) for x, labels in batches]
    points, labels = (torch.cat(part) for part in zip(*embedded, strict=True))
    names = ("precision_at_1", "r_precision", "mean_average_precision_at_r")
    calculator = AccuracyCalculator(include=names, k="max_bin_count", device=torch.device("cpu"))
    return float(calculator.get_accuracy(points, labels)["precision_at_1"])


def main() -> None:
    """Trains once and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--features", type=Path)
    parser.add_argument("--last-block", action="store_true")
    parser.add_argument("--trunk", default="tf_efficientnet_lite0")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--num-features", type=int, default=1280)
    parser.add_argument("--size-px", type=int, default=112)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--embedding-dim", type=int, default=128)
    parser.add_argument("--classes-per-batch", type=int, default=30)
    parser.add_argument("--samples-per-class", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--run-epochs", type=int, default=0, help="stop after so many")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--loader-workers", type=int, default=2)
    options = parser.parse_args()
    options.output.write_text(json.dumps(train(options)), encoding="utf-8")


if __name__ == "__main__":
    main()
