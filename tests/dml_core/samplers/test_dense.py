import numpy as np
import pytest

from dml_core.config.training import DenseSamplerConfig
from dml_core.samplers.dense import DenseSampler


@pytest.fixture
def labels():
    return np.random.default_rng(0).normal(size=(60, 2))


def make_sampler(labels, **knobs):
    return DenseSampler(labels, **knobs)


def test_a_group_holds_the_anchor_its_nearest_and_others(labels):
    sampler = make_sampler(labels, batch_size=12, nearest=4)
    for batch in sampler.epoch_batches(0):
        anchor, nearest = batch.indices[0], batch.indices[1:5]
        distances = np.linalg.norm(labels - labels[anchor], axis=1)
        by_hand = [i for i in np.argsort(distances) if i != anchor][:4]
        assert nearest.tolist() == by_hand
        assert len(set(batch.indices.tolist())) == 12
        assert batch.anchors.tolist() == [0]


def test_several_anchors_make_several_groups(labels):
    sampler = make_sampler(labels, batch_size=30, anchors_per_batch=3, nearest=2)
    batch = next(iter(sampler.epoch_batches(0)))
    assert batch.anchors.tolist() == [0, 10, 20]
    for position in batch.anchors:
        group = batch.indices[position : position + 10]
        distances = np.linalg.norm(labels - labels[group[0]], axis=1)
        assert set(group[1:3]) == set([i for i in np.argsort(distances) if i != group[0]][:2])


def test_every_image_is_an_anchor_once_where_the_epoch_counts_anchors(labels):
    sampler = make_sampler(labels, batch_size=10, nearest=2, epoch="anchors")
    anchors = [int(batch.indices[0]) for batch in sampler.epoch_batches(0)]
    assert sorted(anchors) == list(range(60))


def test_an_epoch_of_images_has_as_many_batches_as_hold_them(labels):
    assert len(make_sampler(labels, batch_size=10)) == 6


def test_no_nearest_gives_uniform_groups(labels):
    batch = next(iter(make_sampler(labels, batch_size=9, nearest=0).epoch_batches(0)))
    assert len(set(batch.indices.tolist())) == 9


def test_the_whole_dataset_fits_in_one_batch(labels):
    batch = next(iter(make_sampler(labels, batch_size=60, nearest=3).epoch_batches(0)))
    assert sorted(batch.indices.tolist()) == list(range(60))


def test_batch_larger_than_the_data_is_refused(labels):
    with pytest.raises(ValueError, match="Got 100 and 60 images"):
        make_sampler(labels, batch_size=100)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"batch_size": 10, "anchors_per_batch": 3}, "must divide batch_size"),
        ({"batch_size": 10, "anchors_per_batch": 2, "nearest": 5}, "Got groups of 5"),
    ],
)
def test_groups_that_cannot_be_made_are_refused(knobs, message):
    with pytest.raises(ValueError, match=message):
        DenseSamplerConfig(**knobs)
