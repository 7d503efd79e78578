"""Tests of the shuffled sampler, and of what all samplers share."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from dml_core.samplers import ClassBalancedSampler, ShuffledSampler


def test_an_epoch_covers_each_image_at_most_once_and_drops_the_rest():
    sampler = ShuffledSampler(num_images=23, batch_size=5, seed=0)
    batches = [batch.indices for batch in sampler.epoch_batches(0)]
    assert [len(batch) for batch in batches] == [5, 5, 5, 5]
    assert len(set(np.concatenate(batches).tolist())) == 20


def test_each_epoch_is_shuffled_and_repeatable():
    sampler = ShuffledSampler(num_images=40, batch_size=10, seed=1)
    first, second, again = (
        [batch.indices.tolist() for batch in sampler.epoch_batches(epoch)] for epoch in (0, 1, 0)
    )
    assert first == again != second


def test_batch_larger_than_the_data_is_refused():
    with pytest.raises(ValueError, match="Got 50 and 10 images"):
        ShuffledSampler(num_images=10, batch_size=50, seed=0)


def test_a_data_loader_takes_the_sampler_and_every_pass_draws_the_next_epoch():
    labels = torch.arange(40) % 8
    sampler = ClassBalancedSampler(labels, batch_size=12, samples_per_class=3, seed=1)
    loader = DataLoader(TensorDataset(torch.arange(40), labels), batch_sampler=sampler)
    expected = [
        [batch.indices.tolist() for batch in sampler.epoch_batches(epoch)] for epoch in (0, 1)
    ]
    passes = [[positions.tolist() for positions, _ in loader] for _ in range(2)]
    assert len(loader) == len(sampler) == 3
    assert passes == expected
    assert passes[0] != passes[1]
    sampler.set_epoch(0)
    assert list(sampler) == passes[0]


def test_a_wrong_argument_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"batchsize is not .*Did you mean 'batch_size'\?"):
        ShuffledSampler(10, batchsize=5)
    with pytest.raises(ValueError, match=r"sed is not .*Did you mean 'seed'\?"):
        ClassBalancedSampler([0, 0, 1, 1], batch_size=4, samples_per_class=2, sed=1)
    with pytest.raises(ValueError, match=r"needs exactly one of class_ratio.*Got none"):
        ClassBalancedSampler([0, 0, 1, 1], batch_size=4)


def test_labels_that_are_no_list_are_refused():
    with pytest.raises(ValueError, match=r"must be \(N,\).*Got \(2, 2\)"):
        ClassBalancedSampler([[0, 1], [0, 1]], batch_size=4, samples_per_class=2)
