"""The draw of a subset of classes: membership, size, uniformity."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dml_core.losses.proxies import draw_proxy_subset


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 60), st.integers(1, 70), st.integers(1, 12), st.integers(0, 2**31))
def test_subset_is_distinct_holds_the_batch_and_finds_it(
    num_classes: int, size: int, images: int, seed: int
):
    stream = torch.Generator().manual_seed(seed)
    labels = torch.randint(num_classes, (images,), generator=stream)
    subset = draw_proxy_subset(labels, num_classes=num_classes, size=size, generator=stream)
    num_present = labels.unique().numel()
    assert subset.classes.numel() == max(num_present, min(size, num_classes))
    assert subset.classes.unique().numel() == subset.classes.numel()
    assert subset.classes.min() >= 0
    assert subset.classes.max() < num_classes
    assert torch.equal(subset.classes[subset.targets], labels)


@pytest.mark.parametrize("size", [6, 20])
def test_every_absent_class_is_drawn_equally_often(size: int):
    # 36 absent classes of 40 with 4 present: each drawn with chance (size - 4) / 36; six
    # standard deviations of a binomial count. Size 6 draws by rejection, 20 by permutation.
    stream = torch.Generator().manual_seed(0)
    labels = torch.tensor([0, 7, 7, 39, 20])
    counts = torch.zeros(40)
    for _ in range(3000):
        subset = draw_proxy_subset(labels, num_classes=40, size=size, generator=stream)
        counts[subset.classes] += 1
    is_present = torch.zeros(40, dtype=torch.bool).index_fill(0, labels, True)
    chance = (size - 4) / 36
    tolerance = 6 * (3000 * chance * (1 - chance)) ** 0.5
    assert (counts[is_present] == 3000).all()
    assert (counts[~is_present] - 3000 * chance).abs().max() < tolerance
