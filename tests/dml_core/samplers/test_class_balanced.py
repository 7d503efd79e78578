import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dml_core.config.training import ClassBalancedSamplerConfig
from dml_core.samplers.class_balanced import ClassBalancedSampler, compute_batch_shape


def make_sampler(labels, seed=0, **knobs):
    return ClassBalancedSampler(labels, seed=seed, **knobs)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=3, max_size=9), st.integers(1, 5), st.integers(0, 99))
def test_every_batch_has_the_exact_shape_and_no_class_twice(class_sizes, samples, seed):
    labels = np.repeat(np.arange(len(class_sizes)), class_sizes)
    sampler = make_sampler(labels, seed, batch_size=3 * samples, classes_per_batch=3)
    batches = list(sampler.epoch_batches(0))
    assert len(batches) == len(sampler) >= 1
    for batch in batches:
        drawn = labels[batch.indices].reshape(3, samples)
        assert (drawn == drawn[:, :1]).all()
        assert len(set(drawn[:, 0])) == 3
        for label, images in zip(drawn[:, 0], batch.indices.reshape(3, samples), strict=True):
            # Images repeat only where the class has fewer than are wanted.
            assert len(set(images.tolist())) == min(samples, class_sizes[label])


def test_an_epoch_deals_every_class_and_image_evenly():
    labels = np.repeat(np.arange(12), 8)
    sampler = make_sampler(labels, batch_size=16, classes_per_batch=4)
    indices = np.concatenate([batch.indices for batch in sampler.epoch_batches(0)])
    # 96 images in batches of 16: 6 batches of 4 classes deal each of 12 classes exactly twice,
    # 4 images each time, so every image comes exactly once.
    assert sorted(indices.tolist()) == list(range(96))


def test_epochs_and_seeds_differ_and_repeat():
    labels = np.repeat(np.arange(10), 6)

    def indices(seed, epoch):
        sampler = make_sampler(labels, seed, batch_size=12, samples_per_class=3)
        return [batch.indices.tolist() for batch in sampler.epoch_batches(epoch)]

    assert indices(0, 0) == indices(0, 0)
    assert indices(0, 0) != indices(0, 1)
    assert indices(0, 0) != indices(1, 0)


@pytest.mark.parametrize(
    ("ratio", "num_classes", "batch_size", "expected"),
    [
        (0.1, 100, 120, (10, 12)),
        (0.01, 100, 120, (2, 60)),  # at least two classes
        (0.5, 107, 120, (54, 2)),  # round(53.5) = 54; 120 // 54 = 2
        (1.0, 30, 120, (30, 4)),
    ],
)
def test_class_ratio_is_the_share_of_classes_in_a_batch(ratio, num_classes, batch_size, expected):
    config = ClassBalancedSamplerConfig(batch_size=batch_size, class_ratio=ratio)
    shape = compute_batch_shape(config, num_classes=num_classes)
    assert (shape.classes_per_batch, shape.samples_per_class) == expected


def test_a_ratio_that_leaves_no_image_per_class_is_rejected():
    config = ClassBalancedSamplerConfig(batch_size=20, class_ratio=0.5)
    with pytest.raises(ValueError, match=r"class_ratio=0.5 requests 50 classes.*batch_size=20"):
        compute_batch_shape(config, num_classes=100)


def test_more_classes_than_exist_are_rejected():
    config = ClassBalancedSamplerConfig(batch_size=60, samples_per_class=2)
    with pytest.raises(ValueError, match=r"requests 30 classes.*only 10 training"):
        compute_batch_shape(config, num_classes=10)
