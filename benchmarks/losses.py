"""Each loss's forward and backward against pytorch-metric-learning's."""

from collections.abc import Callable, Iterator

import torch
from pytorch_metric_learning import losses, miners, reducers

from benchmarks.timing import time_in_turns
from dml_core.losses.registry import build_loss

BATCH, DIM, SAMPLES = 180, 512, 4


def run_losses() -> list[dict[str, object]]:
    """Returns a row for each loss: our milliseconds, theirs, and the ratio."""
    rows: list[dict[str, object]] = []
    for num_classes in (100, 11_318):
        for name, ours, theirs in _pairs(num_classes):
            seconds = time_in_turns({"ours": ours, "theirs": theirs})
            rows.append(
                {
                    "loss": name,
                    "classes": num_classes,
                    "ours_ms": 1000 * seconds["ours"],
                    "pml_ms": 1000 * seconds["theirs"],
                    "ratio": seconds["ours"] / seconds["theirs"],
                }
            )
    return rows


def _pairs(num_classes: int) -> Iterator[tuple[str, Callable[[], None], Callable[[], None]]]:
    torch.manual_seed(0)
    embeddings = torch.nn.functional.normalize(torch.randn(BATCH, DIM), dim=1)
    labels = torch.randperm(min(num_classes, 100))[: BATCH // SAMPLES].repeat_interleave(SAMPLES)

    def step(loss: Callable[..., torch.Tensor]) -> Callable[[], None]:
        def run() -> None:
            leaf = embeddings.clone().requires_grad_()
            loss(leaf, labels).backward()

        return run

    for name, theirs in _theirs(num_classes).items():
        knobs = {"mining_epsilon": None} if name == "multi_similarity" else {}
        ours = build_loss(name, num_classes=num_classes, embedding_dim=DIM, **knobs)
        yield name, step(ours), step(theirs)


def _theirs(num_classes: int) -> dict[str, Callable[..., torch.Tensor]]:
    proxies = {"num_classes": num_classes, "embedding_size": DIM}
    chosen: dict[str, Callable[..., torch.Tensor]] = {
        "proxy_anchor": losses.ProxyAnchorLoss(**proxies),
        "proxy_nca": losses.ProxyNCALoss(**proxies),
        "norm_softmax": losses.NormalizedSoftmaxLoss(**proxies),
        "arcface": losses.ArcFaceLoss(**proxies),
    }
    if num_classes > 100:
        return chosen
    # The losses over pairs do not see how many classes there are.
    miner = miners.TripletMarginMiner(margin=0.2, type_of_triplets="semihard")
    triplet = losses.TripletMarginLoss(margin=0.2, reducer=reducers.MeanReducer())
    return chosen | {
        "contrastive": losses.ContrastiveLoss(neg_margin=0.5),
        "triplet": lambda x, y: triplet(x, y, miner(x, y)),
        "n_pair": losses.NPairsLoss(),
        "lifted_structure": losses.LiftedStructureLoss(),
        "multi_similarity": losses.MultiSimilarityLoss(alpha=2, beta=50, base=0.5),
    }
