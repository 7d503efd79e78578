"""Losses of pytorch-metric-learning by name: values, arguments, and clear refusals."""

import sys

import pytest
import torch
from pytorch_metric_learning import losses as peer

from dml_core.losses.registry import build_loss
from tests.references.proxy_batches import random_batch


def build(name: str, **options: object):
    return build_loss(f"pml:{name}", num_classes=5, embedding_dim=4, options=options)


def test_value_is_that_of_the_wrapped_class():
    batch = random_batch(0, images=10, classes=5, dim=4)
    ours = build("TripletMarginLoss", margin=0.3)(batch.embeddings, batch.labels)
    expected = peer.TripletMarginLoss(margin=0.3)(batch.embeddings, batch.labels)
    assert expected > 0
    assert torch.equal(ours, expected)


@pytest.mark.parametrize(
    ("name", "shape"), [("ProxyAnchorLoss", (5, 4)), ("SubCenterArcFaceLoss", (4, 15))]
)
def test_classes_and_dimension_are_given_where_they_are_taken(name: str, shape: tuple[int, int]):
    (parameter,) = build(name).parameters()
    assert parameter.shape == shape


def test_half_precision_is_computed_in_float32():
    batch = random_batch(0, images=10, classes=5, dim=4)
    leaf = batch.embeddings.half().requires_grad_()
    value = build("TripletMarginLoss")(leaf, batch.labels)
    value.backward()
    assert value.dtype == torch.float32
    assert leaf.grad is not None
    assert leaf.grad.any()


def test_a_batch_without_pairs_backpropagates():
    leaf = torch.randn(3, 4, requires_grad=True)
    build("TripletMarginLoss")(leaf, torch.tensor([0, 1, 2])).backward()
    assert leaf.grad is not None
    assert not leaf.grad.any()


def test_an_unknown_class_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match=r"Got pml:TripletMargn.*Did you mean 'TripletMarginLoss'"):
        build("TripletMargn")


def test_an_unknown_option_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match=r"loss.options.margn is not.*Did you mean 'margin'"):
        build("TripletMarginLoss", margn=0.3)


def test_a_wrong_value_is_refused_with_the_arguments():
    with pytest.raises(ValueError, match=r"pml:ArcFaceLoss cannot be built.*margin='wide'"):
        build("ArcFaceLoss", margin="wide")


def test_a_class_that_wraps_another_loss_is_refused():
    with pytest.raises(ValueError, match=r"pml:SelfSupervisedLoss cannot be built.*'loss'"):
        build("SelfSupervisedLoss")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pytorch_metric_learning", None)
    with pytest.raises(ValueError, match=r"needs the package pytorch-metric-learning.*pip install"):
        build("TripletMarginLoss")
