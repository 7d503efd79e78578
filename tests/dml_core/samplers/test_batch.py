"""Tests of the shuffled sampler."""

import numpy as np
import pytest

from dml_core.samplers.batch import ShuffledSampler


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
