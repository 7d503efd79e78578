"""The losses by name."""

from typing import Any, Protocol, get_args

from pydantic import ValidationError

from dml_core.config.losses import LossBase, LossConfig, PmlConfig
from dml_core.config.problems import ConfigError, describe
from dml_core.config.section import Section
from dml_core.losses.arcface import ArcFaceLoss
from dml_core.losses.base import MetricLoss
from dml_core.losses.contrastive import ContrastiveLoss
from dml_core.losses.dense_triplet import DenseTripletLoss
from dml_core.losses.lifted_structure import LiftedStructureLoss
from dml_core.losses.log_ratio import LogRatioLoss
from dml_core.losses.multi_similarity import MultiSimilarityLoss
from dml_core.losses.n_pair import NPairLoss
from dml_core.losses.norm_softmax import NormSoftmaxLoss
from dml_core.losses.pml_wrapper import PREFIX, PmlLoss
from dml_core.losses.proxy_anchor import ProxyAnchorLoss
from dml_core.losses.proxy_nca import ProxyNcaLoss
from dml_core.losses.triplet import TripletLoss


class LossClass(Protocol):
    """The constructor of a loss."""

    def __call__(self, config: Any, *, num_classes: int, embedding_dim: int) -> MetricLoss:
        """Returns the loss."""


LOSSES: dict[str, LossClass] = {
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


# LossConfig is Annotated[Annotated[A, Tag] | Annotated[B, Tag] | ..., Discriminator].
_CONFIG_CLASSES: dict[str, type[LossBase]] = {
    kind.model_fields["name"].default: kind
    for kind in (get_args(tagged)[0] for tagged in get_args(get_args(LossConfig)[0]))
}


class _Holder(Section):
    """Adds the prefix `loss.` to the keys in error messages."""

    loss: LossConfig


def build_loss(name: str, *, num_classes: int, embedding_dim: int, **parameters: Any) -> MetricLoss:
    """Returns the loss with this name; parameters that are not given have their defaults.

    Args:
        name: a key of LOSSES, or `pml:` followed by a class of pytorch-metric-learning.
        num_classes: number of training classes, for losses with proxies.
        embedding_dim: length of an embedding, for losses with proxies.
        parameters: the fields of the loss's config class.

    Raises:
        ConfigError: with all problems of the name and the parameters.
    """
    try:
        config = _Holder.model_validate({"loss": {"name": name, **parameters}}).loss
    except ValidationError as error:
        fields = _CONFIG_CLASSES.get(name, PmlConfig).model_fields
        keys = [f"loss.{field}" for field in fields]
        problems = describe(error, sections={"loss": [*LOSSES]}, known_keys=keys)
        raise ConfigError(f"loss {name!r}", problems) from error
    return build_loss_from_config(config, num_classes=num_classes, embedding_dim=embedding_dim)


def build_loss_from_config(config: LossBase, *, num_classes: int, embedding_dim: int) -> MetricLoss:
    """Returns the loss of a validated config."""
    name = str(getattr(config, "name"))  # noqa: B009 - declared by every kind, not by the base
    loss_class: LossClass = PmlLoss if name.startswith(PREFIX) else LOSSES[name]
    return loss_class(config, num_classes=num_classes, embedding_dim=embedding_dim)
