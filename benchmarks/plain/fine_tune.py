"""Trains one small network with pytorch-metric-learning and ImageFolder, as a plain script does.

It does not use this project: python benchmarks/plain/fine_tune.py --images FOLDER --output FILE
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from pytorch_metric_learning import losses, miners, reducers, samplers
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

SIZE_PX, SHIFT_PX = 28, 2

LossFunction = Callable[[Tensor, Tensor], Tensor]


class Network(nn.Module):
    """Three convolutions, average and maximum pooled together, and a projection."""

    def __init__(self, *, width: int, embedding_dim: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            *_block(1, width), *_block(width, 2 * width), *_block(2 * width, 4 * width)[:-2],
            nn.ReLU(inplace=True),
        )  # fmt: skip
        self.projection = nn.Linear(4 * width, embedding_dim)
        nn.init.kaiming_normal_(self.projection.weight, mode="fan_out")
        nn.init.zeros_(self.projection.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Returns unit vectors."""
        maps = self.trunk(images)
        pooled = maps.mean(dim=(2, 3)) + maps.amax(dim=(2, 3))
        return nn.functional.normalize(self.projection(pooled))


def _block(before: int, after: int) -> list[nn.Module]:
    convolution = nn.Conv2d(before, after, kernel_size=3, padding=1, bias=False)
    return [convolution, nn.BatchNorm2d(after), nn.MaxPool2d(2), nn.ReLU(inplace=True)]


def make_loss(
    name: str, *, num_classes: int, embedding_dim: int
) -> tuple[LossFunction, list[nn.Parameter]]:
    """Returns a loss of pytorch-metric-learning, with its usual miner, and its proxies."""
    if name == "proxy_anchor":
        anchor = losses.ProxyAnchorLoss(num_classes, embedding_dim, margin=0.1, alpha=32)
        return anchor, list(anchor.parameters())
    if name == "norm_softmax":
        softmax = losses.NormalizedSoftmaxLoss(num_classes, embedding_dim, temperature=0.05)
        return softmax, list(softmax.parameters())
    if name == "multi_similarity":
        similarity, pairs = losses.MultiSimilarityLoss(), miners.MultiSimilarityMiner(epsilon=0.1)
        return lambda points, labels: similarity(points, labels, pairs(points, labels)), []
    triplet = losses.TripletMarginLoss(margin=0.2, reducer=reducers.MeanReducer())
    miner = miners.TripletMarginMiner(margin=0.2, type_of_triplets="semihard")
    return lambda points, labels: triplet(points, labels, miner(points, labels)), []


def scale_pixels() -> list[Callable[..., object]]:
    """Returns the transforms from a grey picture to the network's input."""
    return [transforms.Grayscale(), transforms.ToTensor(), transforms.Normalize([0.5], [0.5])]


def _load(options: argparse.Namespace) -> tuple[DataLoader, DataLoader, int]:
    shifted = [transforms.RandomCrop(SIZE_PX, padding=SHIFT_PX), *scale_pixels()]
    train = ImageFolder(options.images / "train", transforms.Compose(shifted))
    validation = ImageFolder(options.images / "validation", transforms.Compose(scale_pixels()))
    batch_size = options.classes_per_batch * options.samples_per_class
    sampler = samplers.MPerClassSampler(
        train.targets, options.samples_per_class, batch_size, length_before_new_iter=len(train)
    )
    workers = options.loader_workers
    return (
        DataLoader(train, batch_size, sampler=sampler, num_workers=workers, drop_last=True),
        DataLoader(validation, batch_size=64, num_workers=workers),
        len(train.classes),
    )


def train_network(options: argparse.Namespace) -> dict[str, object]:
    """Trains, validates after each epoch, and returns scores and times."""
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    batches, validation, num_classes = _load(options)
    network = Network(width=options.width, embedding_dim=options.embedding_dim)
    loss, proxies = make_loss(
        options.loss, num_classes=num_classes, embedding_dim=options.embedding_dim
    )
    groups = [{"params": network.parameters(), "lr": options.learning_rate}]
    if proxies:
        groups.append({"params": proxies, "lr": 10 * options.learning_rate})
    optimizer = torch.optim.AdamW(groups, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs * len(batches))
    scores, started = [], time.perf_counter()
    for _ in range(options.epochs):
        network.train()
        for images, labels in batches:
            optimizer.zero_grad()
            loss(network(images), labels).backward()
            optimizer.step()
            schedule.step()
        scores.append(_validate(network, validation))
    torch.save(network.state_dict(), options.output.with_suffix(".pt"))
    return {"recall_at_1": scores, "epoch_seconds": time.perf_counter() - started}


def _validate(network: Network, batches: DataLoader) -> float:
    network.eval()
    with torch.inference_mode():
        embedded = [(network(images), labels) for images, labels in batches]
    points, labels = (torch.cat(part) for part in zip(*embedded, strict=True))
    names = ("precision_at_1", "r_precision", "mean_average_precision_at_r")
    calculator = AccuracyCalculator(include=names, k="max_bin_count", device=torch.device("cpu"))
    return float(calculator.get_accuracy(points, labels)["precision_at_1"])


def main() -> None:
    """Trains once and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--loss", default="proxy_anchor")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--embedding-dim", type=int, default=128)
    parser.add_argument("--classes-per-batch", type=int, default=21)
    parser.add_argument("--samples-per-class", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--loader-workers", type=int, default=2)
    options = parser.parse_args()
    options.output.write_text(json.dumps(train_network(options)), encoding="utf-8")


if __name__ == "__main__":
    main()
