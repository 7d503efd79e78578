"""Points between the two embeddings of a pair."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from dml_core.losses.expansion import (
    mix_points,
    pairs_in_batch_order,
    products_between,
    products_of_all,
)
from tests.references.expansion import pair_up, points_between
from tests.references.labelled_batches import labelled_batches


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
