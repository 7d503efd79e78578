import math

import numpy as np
import pytest

from dml_core.seeding import numpy_stream
from dml_core.studies.dimensions import Choice, Range, parse_dimension


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({"uniform": [0, 2]}, Range("uniform", 0.0, 2.0)),
        ({"log_uniform": [1e-4, 1]}, Range("log_uniform", 1e-4, 1.0)),
        ({"int_uniform": [1, 4]}, Range("int_uniform", 1, 4)),
        ({"choice": ["a", None, 2]}, Choice(("a", None, 2))),
    ],
)
def test_each_form_is_read_and_written_back(written, expected):
    dimension = parse_dimension(written)
    assert dimension == expected
    assert dimension.describe() == written


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({"uniform": [2, 1]}, "low < high. Got low=2 and high=1"),
        ({"uniform": [1, 1]}, "low < high. Got low=1 and high=1"),
        ({"log_uniform": [0, 1]}, "low > 0.*Got low=0"),
        ({"int_uniform": [1, 2.5]}, r"two integers.*Got \[1, 2.5\]"),
        ({"uniform": [1]}, r"two finite numbers.*Got \[1\]"),
        ({"uniform": [0, math.inf]}, "two finite numbers.*inf"),
        ({"uniform": [False, True]}, "two finite numbers.*False"),
        ({"choice": []}, r"at least one entry. Got \[\]"),
        ({"choice": [1, 2, 1]}, "each option once. Got 1 twice"),
        ({"normal": [0, 1]}, "one of uniform, log_uniform, int_uniform, choice.*normal"),
        ({"uniform": [0, 1], "choice": [1]}, "must be a search range"),
        (3, "must be a search range.*Got 3.*belongs in fixed"),
    ],
)
def test_a_malformed_dimension_is_refused_with_its_value(written, message):
    with pytest.raises(ValueError, match=message):
        parse_dimension(written)


def draw(dimension, count=4000):
    return [dimension.sample(numpy_stream(0, "test", step=step)) for step in range(count)]


def test_uniform_samples_fill_their_range_evenly():
    drawn = np.array(draw(Range("uniform", 2.0, 4.0)))
    assert 2 <= drawn.min() < 2.01
    assert 3.99 < drawn.max() <= 4
    assert abs(drawn.mean() - 3) < 0.05


def test_each_power_of_ten_is_equally_likely_in_a_log_range():
    drawn = np.array(draw(Range("log_uniform", 1e-4, 1e-1)))
    shares = [((drawn >= low) & (drawn < 10 * low)).mean() for low in (1e-4, 1e-3, 1e-2)]
    np.testing.assert_allclose(shares, 1 / 3, atol=0.03)


def test_whole_numbers_include_both_ends():
    drawn = draw(Range("int_uniform", 1, 3), count=200)
    assert set(drawn) == {1, 2, 3}
    assert all(type(number) is int for number in drawn)


def test_choices_are_all_drawn():
    assert set(draw(Choice(("a", "b", None)), count=100)) == {"a", "b", None}


def test_samples_stay_inside_an_end_that_rounding_would_pass():
    narrow = Range("uniform", 1.00000012, 1.00000017)
    assert all(narrow.contains(value) for value in draw(narrow, count=50))


@pytest.mark.parametrize(
    ("dimension", "value", "bound"),
    [
        (Range("uniform", 0, 100), 5, "low"),
        (Range("uniform", 0, 100), 5.1, None),
        (Range("uniform", 0, 100), 95, "high"),
        # One decade of four is 25 %; 10^0.2 above the low end is 5 %.
        (Range("log_uniform", 1e-4, 1.0), 1e-4 * 10**0.19, "low"),
        (Range("log_uniform", 1e-4, 1.0), 1e-4 * 10**0.21, None),
        (Range("log_uniform", 1e-4, 1.0), 0.9, "high"),
        (Range("int_uniform", 1, 3), 1, "low"),
        (Range("int_uniform", 1, 3), 2, None),
        (Choice((0.1, 0.2, 0.3)), 0.3, "high"),
        (Choice((0.3, 0.2, 0.1)), 0.1, "low"),
        # Each of two options is an end.
        (Choice((0.1, 0.2)), 0.1, "low"),
        (Choice((0.1,)), 0.1, None),
        (Choice(("a", "b", "c")), "a", None),
        (Choice((1, 2, 3, None)), 1, None),
    ],
)
def test_a_value_within_five_percent_of_an_end_is_at_the_bound(dimension, value, bound):
    assert dimension.find_bound(value) == bound


def test_a_range_contains_numbers_of_its_type_only():
    whole = Range("int_uniform", 1, 3)
    assert whole.contains(3)
    assert whole.contains(2.0)
    assert not whole.contains(2.5)
    assert not whole.contains(4)
    assert not whole.contains(True)
    assert not whole.contains("2")
