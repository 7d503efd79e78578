"""Pairs of samples of a class."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dml_core.losses.expansion import (
    first_pairs_in_batch_order,
    pair_of_each_sample,
    pairs_in_batch_order,
)
from tests.references.expansion import pair_up

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
