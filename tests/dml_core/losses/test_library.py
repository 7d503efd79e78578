"""Losses made directly with keyword arguments, as a user of the library makes them."""

import inspect

import numpy as np
import pytest
import torch
from pytorch_metric_learning import losses as peers
from pytorch_metric_learning import miners

from dml_core.config import ConfigError
from dml_core.config.losses import ProxyAnchorConfig
from dml_core.losses import (
    LOSSES,
    ContrastiveLoss,
    LogRatioLoss,
    MultiSimilarityLoss,
    NormSoftmaxLoss,
    ProxyAnchorLoss,
    TripletLoss,
    build_loss,
)
from dml_core.losses.base import MetricLoss


@pytest.fixture
def batch():
    """48 float64 embeddings of 12 classes."""
    embeddings = torch.randn(48, 16, generator=torch.Generator().manual_seed(0)).double()
    return embeddings, torch.arange(48) % 12


def test_proxy_anchor_has_the_values_of_pytorch_metric_learning(batch):
    ours = ProxyAnchorLoss(num_classes=12, embedding_dim=16, alpha=24, delta=0.2).double()
    theirs = peers.ProxyAnchorLoss(12, 16, margin=0.2, alpha=24).double()
    with torch.no_grad():
        theirs.proxies.copy_(ours.proxies)
    torch.testing.assert_close(ours(*batch), theirs(*batch))


def test_multi_similarity_has_the_values_of_pytorch_metric_learning(batch):
    mined = miners.MultiSimilarityMiner(epsilon=0.1)(*batch)
    theirs = peers.MultiSimilarityLoss(alpha=2, beta=50, base=0.5)(*batch, mined)
    torch.testing.assert_close(MultiSimilarityLoss()(*batch), theirs)


def test_contrastive_has_the_values_of_pytorch_metric_learning(batch):
    theirs = peers.ContrastiveLoss(pos_margin=0.1, neg_margin=1.2)(*batch)
    ours = ContrastiveLoss(positive_margin=0.1, negative_margin=1.2)(*batch)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_made_directly_is_the_loss_of_the_pipeline(name: str):
    sizes = {"num_classes": 4, "embedding_dim": 3}
    own = sizes if LOSSES[name].takes_sizes else {}
    embeddings = torch.randn(12, 3, generator=torch.Generator().manual_seed(2))
    labels = torch.arange(12) % 4
    values = []
    for make in (lambda: LOSSES[name](**own), lambda: build_loss(name, **sizes)):
        torch.manual_seed(3)
        loss = make()
        given = labels.float().unsqueeze(1) if loss.uses_continuous_labels else labels
        values.append(loss(embeddings, given))
    assert torch.equal(*values)


def test_a_generator_decides_the_proxies_and_leaves_the_global_state_alone():
    def make(seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        loss = NormSoftmaxLoss(num_classes=6, embedding_dim=4, generator=generator)
        return loss.proxies.detach()

    state = torch.get_rng_state()
    assert torch.equal(make(1), make(1))
    assert not torch.equal(make(1), make(2))
    assert torch.equal(torch.get_rng_state(), state)


def test_the_signature_has_the_names_and_defaults_of_the_config():
    parameters = inspect.signature(ProxyAnchorLoss).parameters
    assert set(parameters) == {
        *("num_classes", "embedding_dim", "generator"),
        *("alpha", "delta", "proxy_ratio", "matryoshka"),
    }
    assert parameters["alpha"].default == ProxyAnchorConfig().alpha
    assert parameters["num_classes"].default is inspect.Parameter.empty


def test_a_loss_prints_its_arguments():
    shown = repr(ProxyAnchorLoss(num_classes=5, embedding_dim=4, alpha=16))
    assert "num_classes=5" in shown
    assert "alpha=16.0" in shown


def test_numbers_of_numpy_and_torch_are_numbers():
    labels = torch.arange(5)
    loss = ProxyAnchorLoss(num_classes=labels.max() + 1, embedding_dim=np.int64(4))
    assert loss.proxies.shape == (5, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"alhpa": 16}, r"ProxyAnchorLoss has 1 .*\n.*alhpa is not .*Did you mean 'alpha'\?"),
        ({"generater": None}, r"generater is not .*Did you mean 'generator'\?"),
        ({"alpha": 0}, r"alpha must be > 0\.0\. Got 0 \(int\)"),
        ({"alpha": "sharp"}, r"alpha must be a number\. Got 'sharp'"),
        ({"proxy_ratio": 1.5}, r"proxy_ratio must be <= 1\.0\. Got 1\.5"),
        ({"num_classes": 0}, r"num_classes must be >= 1\. Got 0"),
        ({"margin": 0.1}, r"margin is not a known parameter\."),
    ],
)
def test_a_wrong_argument_is_refused_by_name(arguments: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        ProxyAnchorLoss(**{"num_classes": 5, "embedding_dim": 4, **arguments})


def test_a_misspelt_and_a_missing_argument_are_reported_together():
    with pytest.raises(ConfigError) as caught:
        ProxyAnchorLoss(num_clases=5, embedding_dim=4)
    assert caught.value.problems == [
        "num_classes is missing.",
        "num_clases is not a known parameter. Did you mean 'num_classes'?",
    ]


def test_a_loss_without_proxies_takes_no_sizes():
    with pytest.raises(ConfigError, match="num_classes is not a known parameter"):
        TripletLoss(num_classes=5)


@pytest.mark.parametrize(
    ("loss", "embeddings", "labels", "message"),
    [
        (TripletLoss(), (4, 3), torch.zeros(4), r"must be \(4,\) int64.*Got \(4,\) torch.float32"),
        (TripletLoss(), (4, 3), torch.arange(3), r"labels of TripletLoss .*Got \(3,\)"),
        (TripletLoss(), (4, 3, 1), torch.arange(4), r"must be \(B, D\).*Got \(4, 3, 1\)"),
        (LogRatioLoss(), (4, 3), torch.zeros(4), r"must be \(4, L\).*labels\.unsqueeze\(1\)"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(
    loss: MetricLoss, embeddings: tuple[int, ...], labels: torch.Tensor, message: str
):
    with pytest.raises(ValueError, match=message):
        loss(torch.zeros(embeddings), labels)
