"""Cross-batch memory: past embeddings as further pairs."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning import distances, miners, reducers
from pytorch_metric_learning import losses as peers
from torch.autograd import gradcheck

from dml_core.config import ConfigError, resolve_trial_config
from dml_core.config.losses import MemoryLossBase
from dml_core.losses import ContrastiveLoss, TripletLoss, build_loss
from dml_core.losses.memory import EmbeddingMemory
from tests.dml_core.losses.test_every_loss import named
from tests.references import pair_losses
from tests.references.labelled_batches import LabelledBatch, labelled_batches

KNOBS = {
    "contrastive": {"positive_margin": 0.3, "negative_margin": 1.3},
    "triplet": {"margin": 0.2, "mining": "semi_hard"},
    "lifted_structure": {"margin": 1.0},
    "multi_similarity": {"alpha": 2.0, "beta": 5.0, "base": 0.5},
}
VARIANTS = [
    *((name, knobs) for name, knobs in KNOBS.items() if name != "multi_similarity"),
    ("triplet", {"margin": 0.2, "mining": "all"}),
    ("triplet", {"margin": 0.2, "mining": "hard"}),
    ("multi_similarity", {**KNOBS["multi_similarity"], "mining_epsilon": 0.1}),
    ("multi_similarity", {**KNOBS["multi_similarity"], "mining_epsilon": None}),
]


def build(name, *, size, start_epoch=0, **knobs):
    memory = {"size": size, "start_epoch": start_epoch}
    return build_loss(name, num_classes=50, embedding_dim=4, memory=memory, **knobs)


def draw(size, *, seed, num_classes=4, dim=4):
    stream = torch.Generator().manual_seed(seed)
    labels = torch.arange(size) % num_classes
    embeddings = torch.randn(size, dim, generator=stream, dtype=torch.float64)
    return LabelledBatch(embeddings, labels)


def test_every_loss_with_memory_is_tested_here():
    assert named(MemoryLossBase) == list(KNOBS)


def test_worked_value():
    loss = ContrastiveLoss(positive_margin=0.4, negative_margin=0.5, memory={"size": 2})
    loss.remember(torch.tensor([[0.0, 5.0], [7.0, 0.0]]), torch.tensor([0, 1]))
    batch = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    # Within the batch: classes 0 and 2 at distance 2. With the memory: (0, 0) of class 0 at a right
    # angle, sqrt(2) - 0.4; (0, 1) of different classes coincide, 0.5 - 1e-6; class 2 is far from
    # both. One pair pulls and one pushes.
    value = loss(batch, torch.tensor([0, 2]))
    assert value.item() == pytest.approx(math.sqrt(2) - 0.4 + 0.5, abs=2e-6)


@pytest.mark.parametrize(("name", "knobs"), VARIANTS, ids=str)
@settings(max_examples=25, deadline=None)
@given(both=labelled_batches(max_size=14), share=st.floats(0.2, 0.8))
def test_equals_the_slow_definition(name, knobs, both, share):
    cut = max(1, int(share * len(both.labels)))
    batch = LabelledBatch(both.embeddings[:cut], both.labels[:cut])
    past = LabelledBatch(both.embeddings[cut:], both.labels[cut:])
    loss = build(name, size=20, **knobs).double()
    loss.remember(*past)
    slow = {("epsilon" if key == "mining_epsilon" else key): v for key, v in knobs.items()}
    expected = pair_losses.with_memory(name, batch, past, **slow)
    assert loss(*batch).item() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("name", "knobs"), VARIANTS, ids=str)
def test_gradient_is_right_and_leaves_the_past_alone(name, knobs):
    loss = build(name, size=20, **knobs).double()
    past = draw(20, seed=1)
    loss.remember(past.embeddings.requires_grad_(), past.labels)
    batch = draw(8, seed=2)
    leaf = batch.embeddings.requires_grad_()
    assert loss(leaf, batch.labels) != 0
    assert gradcheck(lambda x: loss(x, batch.labels), leaf)
    assert past.embeddings.grad is None


def peer_of(name, knobs):
    """Returns the same loss of pytorch-metric-learning, and its miner."""
    if name == "contrastive":
        margins = {"pos_margin": knobs["positive_margin"], "neg_margin": knobs["negative_margin"]}
        return peers.ContrastiveLoss(**margins), None
    if name == "triplet" and knobs["mining"] == "semi_hard":
        miner = miners.TripletMarginMiner(margin=0.2, type_of_triplets="semihard")
        return peers.TripletMarginLoss(margin=0.2, reducer=reducers.MeanReducer()), miner
    if name == "triplet":
        return peers.TripletMarginLoss(margin=0.2), None
    epsilon = knobs["mining_epsilon"]
    miner = None if epsilon is None else miners.MultiSimilarityMiner(epsilon=epsilon)
    loss = peers.MultiSimilarityLoss(
        alpha=knobs["alpha"],
        beta=knobs["beta"],
        base=knobs["base"],
        distance=distances.CosineSimilarity(),
    )
    return loss, miner


# Lifted structure of that package mixes up positions in the batch and in the memory, and it has no
# hardest triplets.
@pytest.mark.parametrize(
    ("name", "knobs"),
    [v for v in VARIANTS if v[0] != "lifted_structure" and v[1].get("mining") != "hard"],
    ids=str,
)
def test_equals_pytorch_metric_learning_over_several_batches(name, knobs):
    size = 8
    # Their memory contains the batch itself.
    loss = build(name, size=2 * size, **knobs)
    peer, miner = peer_of(name, knobs)
    theirs = peers.CrossBatchMemory(peer, embedding_size=4, memory_size=3 * size, miner=miner)
    for seed in range(6):
        batch = draw(size, seed=seed, num_classes=3)
        own = loss(*batch)
        assert own != 0
        torch.testing.assert_close(own, theirs(*batch), msg=f"batch {seed}")
        loss.remember(*batch)


def test_the_memory_keeps_the_newest_embeddings():
    memory = EmbeddingMemory(5)
    for start in (0, 3, 6, 9):
        rows = torch.arange(start, start + 3)
        memory.add(torch.nn.functional.one_hot(rows, 16).float(), rows)
        assert torch.equal(memory.embeddings.argmax(dim=1), memory.labels)
        assert torch.equal(memory.squared_lengths, torch.ones(len(memory.labels)))
        newest = range(max(0, start + 3 - 5), start + 3)
        assert sorted(memory.labels.tolist()) == list(newest)


def test_of_a_batch_larger_than_the_memory_the_last_embeddings_stay():
    memory = EmbeddingMemory(4)
    for _ in range(2):
        memory.add(torch.eye(7), torch.arange(7))
        assert sorted(memory.labels.tolist()) == [3, 4, 5, 6]


def test_a_loaded_state_has_the_bits_and_the_order_of_the_stored_one():
    first, second = (build("triplet", size=10) for _ in range(2))
    for seed in range(3):
        first.remember(*draw(4, seed=seed))
    second.load_state_dict(first.state_dict())
    for loss in (first, second):
        loss.remember(*draw(4, seed=9))
    for name, value in first.state_dict().items():
        assert torch.equal(second.state_dict()[name], value), name


def test_before_the_start_epoch_the_memory_is_filled_but_not_used():
    loss, plain = build("contrastive", size=8, start_epoch=2), ContrastiveLoss()
    loss.remember(*draw(8, seed=1))
    batch = draw(8, seed=2)
    for epoch, is_used in ((0, False), (1, False), (2, True), (3, True)):
        loss.start_epoch(epoch)
        assert (loss(*batch) != plain(*batch)) == is_used


def test_size_zero_is_the_loss_without_memory():
    loss, batch = TripletLoss(memory={"size": 0}), draw(12, seed=3)
    loss.remember(*draw(12, seed=4))
    assert loss.state_dict() == {}
    assert torch.equal(loss(*batch), TripletLoss()(*batch))


@pytest.mark.parametrize("name", ["proxy_anchor", "n_pair", "log_ratio"])
def test_a_loss_without_pairs_of_all_images_refuses_memory(name):
    wanted = rf"loss.memory is not a known parameter of loss.name={name}. Those that have it: "
    with pytest.raises(ConfigError, match=wanted + "contrastive, triplet"):
        resolve_trial_config({"loss.name": name, "loss.memory.size": 64})


def test_memory_and_expansion_together_are_refused():
    layer = {"loss.name": "triplet", "loss.memory.size": 64, "loss.expansion.points": 2}
    with pytest.raises(ConfigError, match=r"memory.size and expansion.points .* Got 64 and 2"):
        resolve_trial_config(layer)


def test_a_memory_that_is_never_used_is_refused():
    layer = {"loss.name": "triplet", "loss.memory.size": 64, "loss.memory.start_epoch": 5}
    with pytest.raises(ConfigError, match=r"start_epoch must be below .* Got 5 and 5"):
        resolve_trial_config(layer, {"training.epochs": 5})
