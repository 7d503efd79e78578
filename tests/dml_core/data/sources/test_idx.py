"""The idx format is read exactly or refused."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dml_core.data.records import DatasetError
from dml_core.data.sources.fashion_mnist import read_idx
from tests.references.official_layouts import idx_bytes

QUICK = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@QUICK
@given(
    shape=st.lists(st.integers(0, 5), min_size=1, max_size=3),
    seed=st.integers(0, 2**32 - 1),
    gzipped=st.booleans(),
)
def test_what_is_written_is_read(tmp_path: Path, shape: list[int], seed: int, gzipped: bool):
    array = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    content = idx_bytes(array)
    (tmp_path / "file").write_bytes(gzip.compress(content) if gzipped else content)
    result = read_idx(tmp_path / "file", num_axes=array.ndim)
    assert result.dtype == np.uint8
    assert np.array_equal(result, array)


@QUICK
@given(kept=st.integers(0, 4 + 4 * 3 + 2 * 3 * 4 - 1))
def test_every_truncation_is_refused(tmp_path: Path, kept: int):
    content = idx_bytes(np.zeros((2, 3, 4), dtype=np.uint8))
    (tmp_path / "images").write_bytes(content[:kept])
    with pytest.raises(DatasetError, match="images must"):
        read_idx(tmp_path / "images", num_axes=3)


def test_a_file_that_is_too_long_is_refused_with_both_lengths(tmp_path: Path):
    (tmp_path / "labels").write_bytes(idx_bytes(np.zeros(5, dtype=np.uint8)) + b"\0")
    with pytest.raises(DatasetError, match=r"must hold 5 bytes .*Found 6"):
        read_idx(tmp_path / "labels", num_axes=1)


def test_labels_in_place_of_images_are_refused(tmp_path: Path):
    (tmp_path / "images").write_bytes(idx_bytes(np.zeros(5, dtype=np.uint8)))
    with pytest.raises(DatasetError, match=r"begins with 00000803. Got 00000801"):
        read_idx(tmp_path / "images", num_axes=3)


def test_a_broken_gzip_file_is_refused(tmp_path: Path):
    content = gzip.compress(idx_bytes(np.arange(200, dtype=np.uint8)))
    (tmp_path / "labels.gz").write_bytes(content[:-12])
    with pytest.raises(DatasetError, match="must be whole"):
        read_idx(tmp_path / "labels.gz", num_axes=1)
