"""Tests of Embedding Expansion."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from dml_core.config.losses import ExpansionConfig
from dml_core.losses.distances import self_products, unit_vectors
from dml_core.losses.expansion import (
    first_pairs_in_batch_order,
    hardest_class_negatives,
    mix_points,
    pair_of_each_sample,
    pairs_in_batch_order,
    products_between,
    products_of_all,
)
from dml_core.losses.lifted_structure import LiftedStructureLoss
from dml_core.losses.multi_similarity import MultiSimilarityLoss
from dml_core.losses.n_pair import NPairLoss
from dml_core.losses.triplet import TripletLoss
from tests.references import pair_losses
from tests.references.expansion import hardest_negatives, pair_up, points_between
from tests.references.labelled_batches import labelled_batches

MINED = ["triplet_all", "triplet_semi_hard", "triplet_hard"]
LOSSES = [*MINED, "lifted_structure", "n_pair", "n_pair_unnormalised", "multi_similarity"]


def build(name, **expansion):
    chosen = {"expansion": ExpansionConfig(**expansion)} if expansion else {}
    if name in MINED:
        return TripletLoss(mining=name.removeprefix("triplet_"), margin=0.3, **chosen)
    if name == "lifted_structure":
        return LiftedStructureLoss(margin=0.8, **chosen)
    if name == "multi_similarity":
        return MultiSimilarityLoss(mining_epsilon=0.1, **chosen)
    return NPairLoss(normalize=name == "n_pair", scale=2.0, **chosen)


def slow_definition(name, batch, *, points, normalize):
    by_similarity = name in ("n_pair", "n_pair_unnormalised", "multi_similarity")
    unnormalised = name == "n_pair_unnormalised"
    rows = batch.embeddings.tolist() if unnormalised else pair_losses.unit_rows(batch.embeddings)
    negatives = hardest_negatives(
        rows, batch.labels, points=points, normalize=normalize, by_similarity=by_similarity
    )
    if name in MINED:
        mining = name.removeprefix("triplet_")
        return pair_losses.triplet(*batch, margin=0.3, mining=mining, negatives=negatives)
    if name == "lifted_structure":
        return pair_losses.lifted_structure(*batch, margin=0.8, negatives=negatives)
    if name == "multi_similarity":
        knobs = {"alpha": 2.0, "beta": 50.0, "base": 0.5, "epsilon": 0.1}
        return pair_losses.multi_similarity(*batch, **knobs, negatives=negatives)
    knobs = {"normalize": not unnormalised, "scale": 2.0, "l2_weight": 0.0}
    return pair_losses.n_pair(*batch, **knobs, negatives=negatives)


def on_circle(*degrees):
    angles = torch.tensor(degrees, dtype=torch.float64) * math.pi / 180
    return torch.stack([angles.cos(), angles.sin()], dim=1)


def chord(degrees):
    return 2 * math.sin(math.radians(degrees) / 2)


def balanced_batch(*, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(12, 4, generator=generator, dtype=torch.float64).to(dtype)
    return embeddings, torch.arange(12) % 3


def test_the_hardest_pair_of_two_arcs_is_found_between_their_synthetics():
    # Class 0 at 0 and 40 degrees has its midpoint at 20; class 1 lies alone at 120 degrees above
    # it, class 2 at 10 and 50 with its midpoint at 30.
    unit = on_circle(0, 40, 120, 10, 50)
    labels = torch.tensor([0, 0, 1, 2, 2])
    hardest = hardest_class_negatives(self_products(unit), labels, ExpansionConfig(points=1))
    # Anchor at 0 stands for 0 and 20: class 1 from 20 (100 degrees), class 2 from either (10).
    # Anchor at 40 stands for 40 and 20: class 1 from itself (80 degrees).
    assert hardest.values[0, 1].item() == pytest.approx(chord(100))
    assert hardest.values[0, 2].item() == pytest.approx(chord(10))
    assert hardest.values[1, 1].item() == pytest.approx(chord(80))
    # Points 5 and 6 are the midpoints of classes 0 and 2.
    assert hardest.anchor_points[0, 1].item() == 5
    assert hardest.class_points[0, 1].item() == 2
    assert hardest.anchor_points[1, 1].item() == 1
    # The lone anchor at 120 is nearest to the originals at 40 and 50.
    assert hardest.class_points[2].tolist()[::2] == [1, 4]
    assert hardest.classes.tolist() == [0, 1, 2]
    assert hardest.mask[0].tolist() == [False, True, True]


@settings(max_examples=60, deadline=None)
@given(
    batch=labelled_batches(max_size=10),
    points=st.integers(1, 4),
    normalize=st.booleans(),
    by_similarity=st.booleans(),
)
def test_hardest_values_equal_the_slow_definition(batch, points, normalize, by_similarity):
    config = ExpansionConfig(points=points, normalize=normalize)
    products = batch.embeddings @ batch.embeddings.T
    found = hardest_class_negatives(products, batch.labels, config, by_similarity=by_similarity)
    expected = hardest_negatives(
        batch.embeddings.tolist(),
        batch.labels,
        points=points,
        normalize=normalize,
        by_similarity=by_similarity,
    )
    for values, mask, slow in zip(found.values, found.mask, expected, strict=True):
        assert values[mask].tolist() == pytest.approx(slow, abs=1e-9)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("points", [1, 2, 3])
@settings(max_examples=12, deadline=None)
@given(batch=labelled_batches(max_size=10, max_classes=3), normalize=st.booleans())
def test_each_loss_equals_its_slow_definition(name, points, batch, normalize):
    expected = slow_definition(name, batch, points=points, normalize=normalize)
    loss = build(name, points=points, normalize=normalize)(*batch)
    assert loss.item() == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("name", LOSSES)
def test_zero_points_are_bit_for_bit_the_plain_loss(name):
    results = []
    for loss in (build(name), build(name, points=0)):
        embeddings, labels = balanced_batch(dtype=torch.float32)
        value = loss(embeddings.requires_grad_(), labels)
        value.backward()
        assert "synthetic_fraction" not in loss.diagnostics
        results.append((value, embeddings.grad))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("normalize", [True, False])
def test_gradient_of_each_loss_is_right(name, normalize):
    # The gradient is checked one number at a time, so the batch is small.
    embeddings = torch.randn(8, 3, generator=torch.Generator().manual_seed(3)).double()
    labels = torch.tensor([0, 1, 2, 0, 1, 2, 0, 0])
    loss = build(name, points=2, normalize=normalize)
    assert loss(embeddings, labels) > 0
    assert loss.diagnostics["synthetic_fraction"] > 0
    assert gradcheck(lambda x: loss(x, labels), embeddings.requires_grad_())


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("labels", [[0, 1, 2], [0, 0, 0]])
def test_one_class_or_only_lone_samples_backpropagate(name, labels):
    embeddings = torch.eye(3, requires_grad=True)
    loss = build(name, points=2)(embeddings, torch.tensor(labels))
    loss.backward()
    assert loss.item() == 0
    assert embeddings.grad.abs().sum() == 0


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_opposite_ends_copies_and_zero_rows_are_finite_in_every_dtype(name, dtype):
    rows = [[1.0, 0], [-1, 0], [0, 0], [1, 2], [2, 1], [2, 1], [1, 0]]
    embeddings = torch.tensor(rows, dtype=dtype, requires_grad=True)
    loss = build(name, points=3)(embeddings, torch.tensor([0, 0, 1, 1, 2, 2, 2]))
    loss.backward()
    assert loss.isfinite()
    assert embeddings.grad.isfinite().all()


def test_diagnostics_tell_the_synthetic_share_and_class_by_class_distances():
    loss = build("triplet_hard", points=1)
    # Midpoint of class 7 at 20 degrees. Class 3 at 60 is nearest to the anchor at 40 itself
    # (20 degrees), and to the anchor at 0 through the midpoint (40 degrees): one of the three
    # pairs, with that of the lone anchor at 60, has a synthetic end.
    loss(on_circle(0, 40, 60), torch.tensor([7, 7, 3]))
    assert loss.diagnostics["synthetic_fraction"].item() == pytest.approx(1 / 3)
    assert loss.diagnostics["hardest_classes"].tolist() == [3, 7]
    expected = torch.tensor([[0, chord(20)], [chord(20), 0]], dtype=torch.float64)
    torch.testing.assert_close(loss.diagnostics["hardest_distances"], expected)


def test_hardest_distances_are_symmetric_and_least_over_all_points_of_two_classes():
    embeddings, labels = balanced_batch(seed=5)
    loss = build("multi_similarity", points=3)
    loss(embeddings, labels)
    found = loss.diagnostics["hardest_distances"]
    torch.testing.assert_close(found, found.T)
    originals = torch.cdist(unit_vectors(embeddings), unit_vectors(embeddings))
    assert (found[0, 1] <= originals[labels == 0][:, labels == 1].min()).item()


def test_no_tensor_is_larger_than_all_points_squared():
    generator = torch.Generator().manual_seed(6)
    # One class of 60 and 60 lone samples, which padding to the largest class would blow up.
    labels = torch.cat([torch.zeros(60, dtype=torch.int64), torch.arange(1, 61)])
    embeddings = torch.randn(120, 256, generator=generator, requires_grad=True)
    num_points = 120 + 30 * 4
    sizes = []

    class Recorder(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            parts = result if isinstance(result, tuple | list) else [result]
            sizes.extend(part.numel() for part in parts if isinstance(part, torch.Tensor))
            return result

    with Recorder():
        build("triplet_all", points=4)(embeddings, labels).backward()
    assert max(sizes) == num_points**2


LABELS = st.lists(st.integers(0, 4), min_size=1, max_size=14)


def as_list(pairs):
    return list(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True))


def test_samples_are_paired_in_batch_order_and_an_odd_one_stays_alone():
    pairs = pairs_in_batch_order(torch.tensor([7, 3, 7, 7, 3]))
    assert as_list(pairs) == [(1, 4), (0, 2)]
    assert pair_of_each_sample(pairs, batch_size=5).tolist() == [1, 0, 1, -1, 0]


@settings(max_examples=60, deadline=None)
@given(labels=LABELS)
def test_pairs_equal_those_of_a_plain_loop(labels):
    assert as_list(pairs_in_batch_order(torch.tensor(labels))) == pair_up(torch.tensor(labels))


@settings(max_examples=60, deadline=None)
@given(labels=LABELS)
def test_first_pairs_are_the_first_two_samples_of_each_class_that_has_two(labels):
    members = {name: [i for i, x in enumerate(labels) if x == name] for name in sorted(set(labels))}
    expected = [(m[0], m[1]) for m in members.values() if len(m) > 1]
    assert as_list(first_pairs_in_batch_order(torch.tensor(labels))) == expected


def mix(embeddings, labels, *, points, normalize):
    products = embeddings @ embeddings.T
    pairs = pairs_in_batch_order(labels)
    return products, mix_points(products, pairs, points=points, normalize=normalize)


def make_vectors(embeddings, mixture):
    first, second = embeddings[mixture.ends[0]], embeddings[mixture.ends[1]]
    earlier, later = mixture.weights.unsqueeze(2)
    return earlier * first + later * second


def test_two_points_divide_the_way_between_a_pair_in_three():
    embeddings = torch.tensor([[0.0, 3.0], [5.0, 5.0], [3.0, 0.0]])
    _, mixture = mix(embeddings, torch.tensor([4, 9, 4]), points=2, normalize=False)
    vectors = make_vectors(embeddings, mixture)
    assert torch.equal(vectors[:3], embeddings)
    # (1 * (3, 0) + 2 * (0, 3)) / 3 and (2 * (3, 0) + 1 * (0, 3)) / 3.
    torch.testing.assert_close(vectors[3:], torch.tensor([[1.0, 2.0], [2.0, 1.0]]))
    torch.testing.assert_close(mixture.squared_lengths[3:], torch.tensor([5.0, 5.0]))


def test_normalised_points_have_length_one():
    embeddings = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    _, mixture = mix(embeddings, torch.tensor([0, 0]), points=1, normalize=True)
    vectors = make_vectors(embeddings, mixture)
    torch.testing.assert_close(vectors[2:], torch.full((1, 2), math.sqrt(0.5)))


def test_a_point_between_opposite_ends_is_the_origin_without_gradient():
    embeddings = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], requires_grad=True)
    _, mixture = mix(embeddings, torch.tensor([0, 0]), points=1, normalize=True)
    vectors = make_vectors(embeddings, mixture)[2:]
    vectors.sum().backward()
    assert vectors.tolist() == [[0, 0]]
    assert embeddings.grad.tolist() == [[0, 0], [0, 0]]


@settings(max_examples=50, deadline=None)
@given(batch=labelled_batches(), points=st.integers(1, 4), normalize=st.booleans())
def test_points_and_their_products_equal_those_of_a_plain_loop(batch, points, normalize):
    rows = batch.embeddings.tolist()
    everything = [*rows]
    for first, second in pair_up(batch.labels):
        everything += points_between(rows[first], rows[second], points=points, normalize=normalize)
    wanted = torch.tensor(everything, dtype=torch.float64)
    products, mixture = mix(*batch, points=points, normalize=normalize)
    torch.testing.assert_close(make_vectors(batch.embeddings, mixture), wanted)
    expected = wanted @ wanted.T
    torch.testing.assert_close(products_of_all(products, mixture), expected)
    torch.testing.assert_close(mixture.squared_lengths, expected.diagonal())
    left = torch.arange(len(everything)).unsqueeze(1).expand(-1, len(everything))
    torch.testing.assert_close(products_between(products, mixture, left, left.T), expected)


@pytest.mark.parametrize("normalize", [True, False])
def test_the_gradient_reaches_both_ends(normalize):
    embeddings = torch.randn(5, 3, generator=torch.Generator().manual_seed(1)).double()
    labels = torch.tensor([0, 0, 1, 1, 1])
    embeddings.requires_grad_()
    # Two originals of each class are paired, so the synthetic points are 5 to 10.
    left, right = torch.tensor([[5, 6, 7]]), torch.tensor([[8, 9, 10]])

    def multiply(x):
        products, mixture = mix(x, labels, points=3, normalize=normalize)
        return products_between(products, mixture, left, right)

    multiply(embeddings).square().sum().backward()
    assert (embeddings.grad.abs().sum(dim=1) > 0).tolist() == [True] * 4 + [False]
    assert gradcheck(multiply, embeddings)
