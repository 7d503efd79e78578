"""The losses by name."""

from typing import Any

from dml_core.config.losses import LossBase
from dml_core.config.problems import ConfigError, suggest
from dml_core.losses.arcface import ArcFaceLoss
from dml_core.losses.base import MetricLoss
from dml_core.losses.contrastive import ContrastiveLoss
from dml_core.losses.dense_triplet import DenseTripletLoss
from dml_core.losses.lifted_structure import LiftedStructureLoss
from dml_core.losses.log_ratio import LogRatioLoss
from dml_core.losses.multi_similarity import MultiSimilarityLoss
from dml_core.losses.n_pair import NPairLoss
from dml_core.losses.norm_softmax import NormSoftmaxLoss
from dml_core.losses.own import OwnLoss
from dml_core.losses.pml_wrapper import PREFIX, PmlLoss
from dml_core.losses.proxy_anchor import ProxyAnchorLoss
from dml_core.losses.proxy_nca import ProxyNcaLoss
from dml_core.losses.triplet import TripletLoss
from dml_core.own_code import is_own

LOSSES: dict[str, type[MetricLoss]] = {
    "proxy_nca": ProxyNcaLoss,
    "proxy_anchor": ProxyAnchorLoss,
    "norm_softmax": NormSoftmaxLoss,
    "arcface": ArcFaceLoss,
    "contrastive": ContrastiveLoss,
    "triplet": TripletLoss,
    "lifted_structure": LiftedStructureLoss,
    "n_pair": NPairLoss,
    "multi_similarity": MultiSimilarityLoss,
    "log_ratio": LogRatioLoss,
    "dense_triplet": DenseTripletLoss,
}


def build_loss(name: str, *, num_classes: int, embedding_dim: int, **arguments: Any) -> MetricLoss:
    """Returns the loss with this name; arguments that are not given have their defaults.

    Args:
        name: a key of LOSSES, `pml:` followed by a class of pytorch-metric-learning, or
            `python:` followed by a module of the project folder, a colon and a class.
        num_classes: number of training classes, for losses with parameters.
        embedding_dim: length of an embedding, for losses with parameters.
        arguments: the fields of the loss's config class.

    Raises:
        ConfigError: for an unknown name, or with all problems of the arguments.
    """
    loss_class = _find_class(name)
    if loss_class is None:
        known = (
            f"{', '.join(LOSSES)}, {PREFIX}<class of pytorch-metric-learning>, or "
            "python:<module>:<class>"
        )
        problem = f"must be one of {known}. Got {name!r}.{suggest(name, LOSSES)}"
        raise ConfigError("loss.name", [f"loss.name {problem}"])
    sizes = {"num_classes": num_classes, "embedding_dim": embedding_dim}
    return loss_class(name=name, **(sizes if loss_class.takes_sizes else {}), **arguments)


def _find_class(name: str) -> type[MetricLoss] | None:
    if name.startswith(PREFIX):
        return PmlLoss
    return OwnLoss if is_own(name) else LOSSES.get(name)


def build_loss_from_config(config: LossBase, *, num_classes: int, embedding_dim: int) -> MetricLoss:
    """Returns the loss of a validated config."""
    return build_loss(num_classes=num_classes, embedding_dim=embedding_dim, **dict(config))
