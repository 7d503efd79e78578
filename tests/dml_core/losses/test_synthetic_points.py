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
    synthesize,
)
from tests.references.expansion import pair_up, points_between
from tests.references.labelled_batches import labelled_batches


def test_two_points_part_the_way_between_a_pair_in_three():
    embeddings = torch.tensor([[0.0, 3.0], [5.0, 5.0], [3.0, 0.0]])
    made = synthesize(embeddings, torch.tensor([4, 9, 4]), points=2, normalize=False)
    # (1 * (3, 0) + 2 * (0, 3)) / 3 and (2 * (3, 0) + 1 * (0, 3)) / 3.
    torch.testing.assert_close(made.vectors, torch.tensor([[1.0, 2.0], [2.0, 1.0]]))
    assert made.labels.tolist() == [4, 4]
    assert made.pairs.tolist() == [0, 0]


def test_normalised_points_have_length_one():
    embeddings = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    made = synthesize(embeddings, torch.tensor([0, 0]), points=1, normalize=True)
    torch.testing.assert_close(made.vectors, torch.full((1, 2), math.sqrt(0.5)))


def test_a_point_between_opposite_ends_is_the_origin_without_gradient():
    embeddings = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], requires_grad=True)
    made = synthesize(embeddings, torch.tensor([0, 0]), points=1, normalize=True)
    made.vectors.sum().backward()
    assert made.vectors.tolist() == [[0, 0]]
    assert embeddings.grad.tolist() == [[0, 0], [0, 0]]


@settings(max_examples=50, deadline=None)
@given(batch=labelled_batches(), points=st.integers(1, 4), normalize=st.booleans())
def test_points_equal_those_of_a_plain_loop(batch, points, normalize):
    made = synthesize(*batch, points=points, normalize=normalize)
    rows = batch.embeddings.tolist()
    expected = []
    for first, second in pair_up(batch.labels):
        expected += points_between(rows[first], rows[second], points=points, normalize=normalize)
    shape = (len(expected), batch.embeddings.shape[1])
    torch.testing.assert_close(made.vectors, torch.tensor(expected).double().view(shape))


@settings(max_examples=50, deadline=None)
@given(batch=labelled_batches(), points=st.integers(1, 4), normalize=st.booleans())
def test_products_without_vectors_equal_products_of_vectors(batch, points, normalize):
    made = synthesize(*batch, points=points, normalize=normalize)
    everything = torch.cat([batch.embeddings, made.vectors])
    products = batch.embeddings @ batch.embeddings.T
    pairs = pairs_in_batch_order(batch.labels)
    mixture = mix_points(products, pairs, points=points, normalize=normalize)
    expected = everything @ everything.T
    torch.testing.assert_close(products_of_all(products, mixture), expected)
    torch.testing.assert_close(mixture.squared_lengths, expected.diagonal())
    left = torch.arange(len(everything)).unsqueeze(1).expand(-1, len(everything))
    torch.testing.assert_close(products_between(products, mixture, left, left.T), expected)


@pytest.mark.parametrize("normalize", [True, False])
def test_the_gradient_flows_to_both_ends(normalize):
    embeddings = torch.randn(5, 3, generator=torch.Generator().manual_seed(1)).double()
    labels = torch.tensor([0, 0, 1, 1, 1])
    embeddings.requires_grad_()

    def vectors(x):
        return synthesize(x, labels, points=3, normalize=normalize).vectors

    vectors(embeddings).square().cumsum(dim=1).sum().backward()
    assert (embeddings.grad.abs().sum(dim=1) > 0).tolist() == [True] * 4 + [False]
    assert gradcheck(vectors, embeddings)
