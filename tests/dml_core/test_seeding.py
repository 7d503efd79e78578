import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml_core.seeding import numpy_stream, stream_seed, torch_stream

names = st.tuples(
    st.integers(0, 2**32 - 1),
    st.text(max_size=20),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
)


def draw(name):
    seed, purpose, epoch, step = name
    return numpy_stream(seed, purpose, epoch=epoch, step=step).integers(2**63, size=2).tolist()


@given(names, names)
def test_different_names_never_coincide(first, second):
    assert (draw(first) == draw(second)) == (first == second)


def test_small_seeds_and_epochs_are_all_distinct():
    # The trap of multiplying seed and epoch: seeds 0 and 1 agree, and epoch 0 is one stream.
    draws = {
        tuple(draw((seed, "batches", epoch, step)))
        for seed in range(10)
        for epoch in range(10)
        for step in range(3)
    }
    assert len(draws) == 300


def test_purposes_do_not_move_each_other():
    before = draw((1, "batches", 2, 0))
    numpy_stream(1, "augmentation", epoch=2).random(1000)
    assert draw((1, "batches", 2, 0)) == before


def test_streams_are_the_same_on_every_machine():
    # Values of numpy's PCG64 and SeedSequence, which numpy promises to keep.
    assert numpy_stream(0, "batches").integers(1000, size=4).tolist() == [749, 412, 410, 483]
    assert stream_seed(0, "batches") == 8207076370097776321


def test_torch_stream_follows_its_name():
    first, again, other = (torch_stream(3, p).initial_seed() for p in ("a", "a", "b"))
    assert first == again != other


@pytest.mark.parametrize("number", [-1, 2**32])
def test_numbers_outside_32_bits_are_refused(number):
    with pytest.raises(ValueError, match=f"seed must be from 0 to 4294967295. Got {number}"):
        numpy_stream(number, "batches")
    with pytest.raises(ValueError, match="epoch must be"):
        numpy_stream(0, "batches", epoch=number)


def test_uniform_draws_look_uniform():
    draws = np.array([numpy_stream(seed, "x").random() for seed in range(2000)])
    # The mean of 2,000 uniform draws has standard deviation 0.289 / sqrt(2000) = 0.0065.
    assert abs(draws.mean() - 0.5) < 0.03
