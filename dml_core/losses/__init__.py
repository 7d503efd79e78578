"""The losses, one module each, and their registry.

Every loss is a torch module: `ProxyAnchorLoss(num_classes=100, embedding_dim=512, alpha=32)`.
"""

from dml_core.losses.arcface import ArcFaceLoss
from dml_core.losses.base import MetricLoss
from dml_core.losses.contrastive import ContrastiveLoss
from dml_core.losses.dense_triplet import DenseTripletLoss
from dml_core.losses.lifted_structure import LiftedStructureLoss
from dml_core.losses.log_ratio import LogRatioLoss
from dml_core.losses.multi_similarity import MultiSimilarityLoss
from dml_core.losses.n_pair import NPairLoss
from dml_core.losses.norm_softmax import NormSoftmaxLoss
from dml_core.losses.proxies import ProxyLoss
from dml_core.losses.proxy_anchor import ProxyAnchorLoss
from dml_core.losses.proxy_nca import ProxyNcaLoss
from dml_core.losses.registry import LOSSES, build_loss, build_loss_from_config
from dml_core.losses.triplet import TripletLoss

__all__ = [
    "LOSSES",
    "ArcFaceLoss",
    "ContrastiveLoss",
    "DenseTripletLoss",
    "LiftedStructureLoss",
    "LogRatioLoss",
    "MetricLoss",
    "MultiSimilarityLoss",
    "NPairLoss",
    "NormSoftmaxLoss",
    "ProxyAnchorLoss",
    "ProxyLoss",
    "ProxyNcaLoss",
    "TripletLoss",
    "build_loss",
    "build_loss_from_config",
]
