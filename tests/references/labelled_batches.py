"""Random small batches for the tests of the losses."""

from typing import NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor


class LabelledBatch(NamedTuple):
    embeddings: Tensor
    labels: Tensor


@st.composite
def labelled_batches(draw, *, max_size=9, max_classes=4, duplicates=True):
    """Draws float64 embeddings with unbalanced classes, singletons and copies within a class."""
    labels = draw(st.lists(st.integers(0, max_classes - 1), min_size=2, max_size=max_size))
    dim = draw(st.integers(2, 5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    embeddings = torch.randn(len(labels), dim, generator=generator, dtype=torch.float64)
    if duplicates and draw(st.booleans()):
        source = draw(st.integers(0, len(labels) - 1))
        for position, label in enumerate(labels):
            if label == labels[source]:
                embeddings[position] = embeddings[source]
    # Labels with gaps and out of order, so that nothing takes them for positions.
    return LabelledBatch(embeddings, torch.tensor(labels) * 7 + 3)


@st.composite
def continuous_batches(draw, *, max_size=9):
    """Draws float64 embeddings with labels on a coarse grid, so that many distances are tied."""
    size, dim, columns = draw(st.integers(2, max_size)), draw(st.integers(1, 4)), 2
    grid = st.lists(st.integers(-2, 2), min_size=columns, max_size=columns)
    labels = torch.tensor(draw(st.lists(grid, min_size=size, max_size=size))) / 2
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    embeddings = torch.randn(size, dim, generator=generator, dtype=torch.float64)
    return LabelledBatch(embeddings, labels.double())
