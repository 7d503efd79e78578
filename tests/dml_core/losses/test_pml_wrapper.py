"""Losses of pytorch-metric-learning by name: values, arguments, and clear refusals."""

import sys

import pytest
import torch
from pytorch_metric_learning import distances, miners, reducers, regularizers
from pytorch_metric_learning import losses as peer

from dml_core.config import resolve_trial_config
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


def test_parts_are_built_from_nested_options():
    batch = random_batch(0, images=12, classes=3, dim=4)
    ours = build(
        "TripletMarginLoss",
        margin=0.3,
        distance={"name": "LpDistance", "p": 1, "normalize_embeddings": False},
        reducer={"name": "ThresholdReducer", "low": 0.1},
        embedding_regularizer={"name": "LpRegularizer", "p": 1, "reducer": "SumReducer"},
        miner={"name": "TripletMarginMiner", "margin": 0.5, "distance": "SNRDistance"},
    )(batch.embeddings, batch.labels)
    theirs = peer.TripletMarginLoss(
        margin=0.3,
        distance=distances.LpDistance(p=1, normalize_embeddings=False),
        reducer=reducers.ThresholdReducer(low=0.1),
        embedding_regularizer=regularizers.LpRegularizer(p=1, reducer=reducers.SumReducer()),
    )
    miner = miners.TripletMarginMiner(margin=0.5, distance=distances.SNRDistance())
    mined = miner(batch.embeddings, batch.labels)
    expected = theirs(batch.embeddings, batch.labels, mined)
    assert expected != peer.TripletMarginLoss(margin=0.3)(batch.embeddings, batch.labels)
    assert torch.equal(ours, expected)


def test_nested_options_are_dotted_keys():
    layer = {"loss.name": "pml:ContrastiveLoss", "loss.options.distance.name": "LpDistance"}
    config = resolve_trial_config(layer, {"loss.options.distance.p": 1})
    assert config.loss.options == {"distance": {"name": "LpDistance", "p": 1}}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"distance": {"name": "LpDistanc"}}, r"distance.name must be a class of .*'LpDistance'"),
        ({"reducer": "MeanReduce"}, r"reducer.name must be .* Did you mean 'MeanReducer'"),
        ({"miner": {"name": "BatchHardMinr"}}, r"options.miner.name .* 'BatchHardMiner'"),
        (
            {"miner": {"name": "PairMarginMiner", "pos_margn": 1}},
            r"miner.pos_margn is not an argument",
        ),
        ({"embedding_regularizer": {"p": 1}}, r"must be a class of .*regularizers, or a mapping"),
    ],
)
def test_an_unknown_part_is_refused_with_the_nearest_name(options, said):
    with pytest.raises(ValueError, match=said):
        build("TripletMarginLoss", **options)


def test_all_problems_of_nested_options_are_reported_together():
    with pytest.raises(ValueError, match=r"has 3 problem\(s\)"):
        build("TripletMarginLoss", margn=1, distance="Lp", miner="Hard")


def test_cross_batch_memory_is_reached_and_resumes_bit_for_bit():
    options = {
        "loss": {"name": "ContrastiveLoss", "neg_margin": 1.2},
        "memory_size": 25,
        "miner": {"name": "PairMarginMiner", "pos_margin": 0.1, "neg_margin": 1.3},
    }
    ours, resumed = build("CrossBatchMemory", **options), build("CrossBatchMemory", **options)
    theirs = peer.CrossBatchMemory(
        peer.ContrastiveLoss(neg_margin=1.2),
        embedding_size=4,
        memory_size=25,
        miner=miners.PairMarginMiner(pos_margin=0.1, neg_margin=1.3),
    )
    for seed in range(6):
        batch = random_batch(seed, images=10, classes=5, dim=4)
        resumed.load_state_dict(ours.state_dict())
        expected = theirs(batch.embeddings, batch.labels)
        assert torch.equal(ours(batch.embeddings, batch.labels), expected)
        assert torch.equal(resumed(batch.embeddings, batch.labels), expected)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pytorch_metric_learning", None)
    monkeypatch.delitem(sys.modules, "pytorch_metric_learning.losses")
    with pytest.raises(ValueError, match=r"needs the package pytorch-metric-learning.*pip install"):
        build("TripletMarginLoss")
