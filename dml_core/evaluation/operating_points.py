"""Thresholds for verification: how many pairs of one class are missed at a given false match rate.

A pair of images matches if it is nearer than a threshold. Pairs of different classes that match are
false matches, pairs of one class that do not match are false non-matches.
"""

# C = columns of a block, P = pairs, R = rows of a block

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Self

import numpy as np
import numpy.typing as npt

from dml_core.evaluation.arrays import DoubleArray, FloatArray, Frame, IntArray, Metric

SIDE = 1024
"""Most images per side of a block of pairs: its products and ranks take about 40 MB."""
_HALF_BITS = 16
_HALF = 1 << _HALF_BITS
"""Values of one half of a rank: a histogram over one half takes 512 KiB."""

_STEPS = 2.0**40
"""Distances are rounded to this part of 1 first: errors of float64 would separate ties."""

Ranks = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class OperatingPoint:
    """The loosest threshold that keeps a false match rate."""

    threshold: float
    """In the score of a search: a cosine, above which a pair matches, or a Euclidean distance,
    below which it does."""
    false_non_match_rate: float
    """Share of the pairs of one class that do not match."""


@dataclass(frozen=True)
class OperatingPoints:
    """The operating points of a set of embeddings."""

    points: dict[float, OperatingPoint]
    """By false match rate; empty if there are no pairs of different classes, or none of one."""
    num_impostor_pairs: int
    """Pairs of different classes. A rate below one of them allows no false match at all."""

    def named(self) -> dict[str, float]:
        """Returns the numbers under the names used in reports."""
        missed = [each.false_non_match_rate for each in self.points.values()]
        thresholds = [each.threshold for each in self.points.values()]
        return dict(zip(name_points(list(self.points)), missed + thresholds, strict=True))


def name_points(rates: Sequence[float]) -> list[str]:
    """Returns the names of the numbers at these false match rates, in the order of the report.

    Rates are written without an exponent: 0.00001, not 1e-05.
    """
    plain = [np.format_float_positional(rate, trim="-") for rate in dict.fromkeys(rates)]
    return [f"{kind}_at_fmr_{rate}" for kind in ("fnmr", "threshold") for rate in plain]


def find_operating_points(
    queries: FloatArray,
    query_labels: IntArray,
    gallery: FloatArray | None = None,
    gallery_labels: IntArray | None = None,
    *,
    rates: Sequence[float],
    metric: Metric,
    block_size: int = SIDE,
) -> OperatingPoints:
    """Returns the threshold and the false non-match rate at each false match rate.

    The pairs are those of a query with a gallery item, or without a gallery those of two different
    images, each once. At rate f of P pairs of different classes, floor(f P) of them may match: the
    threshold is the distance of the next one, and only nearer pairs match. So the rate is kept with
    ties too.

    The selection is exact: distances are compared as float32, rounded from float64, so the result
    depends neither on the blocks nor on the order of the images. It takes two passes over all pairs
    with histograms over the two halves of a float's bits; neither stores the distances.

    Args:
        queries: (Q, D) finite embeddings.
        query_labels: (Q,) class ids.
        gallery: (G, D) finite embeddings; None pairs the queries with each other.
        gallery_labels: (G,) class ids.
        rates: false match rates, each above 0 and below 1.
        metric: distance that the embeddings were trained for.
        block_size: most images per side of a block; bounds the memory, never changes a result.

    Example:
        Distances 1, 2, 3, 4 between classes and 0.5, 2, 2.5 within: at rate 0.25 one pair may
        match, the threshold is 2, and of the three pairs of one class 2 and 2.5 are missed: 2/3.
    """
    pairs = _Pairs(queries, query_labels, gallery, gallery_labels, metric, min(block_size, SIDE))
    coarse = _count_coarse(pairs)
    num_other, num_same = (int(counts.sum()) for counts in coarse)
    if not num_other or not num_same:
        return OperatingPoints({}, num_other)
    # As written, not as stored: 0.29 of 100 pairs are 29, and the product of floats is below 29.
    allowed = {rate: int(Fraction(str(rate)) * num_other) for rate in rates}
    totals = np.cumsum(coarse[0])
    places = {rate: int(np.searchsorted(totals, k, side="right")) for rate, k in allowed.items()}
    wanted = sorted(set(places.values()))
    fine = _count_fine(pairs, wanted)
    points = {}
    for rate, place in places.items():
        other, same = (counts[wanted.index(place)] for counts in fine)
        left = allowed[rate] - int(coarse[0][:place].sum())
        low = int(np.searchsorted(np.cumsum(other), left, side="right"))
        matched = int(coarse[1][:place].sum()) + int(same[:low].sum())
        threshold = pairs.to_score((place << _HALF_BITS) | low)
        points[rate] = OperatingPoint(threshold, (num_same - matched) / num_same)
    return OperatingPoints(points, num_other)


class _Pairs:
    """The distances of all pairs as integer ranks, block by block."""

    def __init__(
        self,
        queries: FloatArray,
        query_labels: IntArray,
        gallery: FloatArray | None,
        gallery_labels: IntArray | None,
        metric: Metric,
        side: int,
    ) -> None:
        searched = queries if gallery is None else gallery
        self._frame = Frame.around(searched, metric=metric)
        self._side = side
        self._rows = _ByClass.sort(queries, query_labels)
        self._is_symmetric = gallery is None or gallery_labels is None
        self._columns = self._rows
        if gallery is not None and gallery_labels is not None:
            self._columns = _ByClass.sort(gallery, gallery_labels)

    def __iter__(self) -> Iterator[tuple[Ranks, Ranks]]:
        """Yields the (P,) ranks of pairs of different classes, and of pairs of one class."""
        nothing = np.empty(0, dtype=np.uint32)
        for rows in self._rows.blocks(self._side):
            for columns in self._columns.blocks(self._side):
                if self._is_symmetric and columns.start < rows.start:
                    continue
                ranks = self._rank(rows, columns)
                row_labels, column_labels = self._rows.labels[rows], self._columns.labels[columns]
                is_diagonal = self._is_symmetric and columns.start == rows.start
                # Sorted labels: blocks whose ranges are apart have no class in common.
                if not is_diagonal and not _overlap(row_labels, column_labels):
                    yield ranks.ravel(), nothing
                    continue
                is_same = row_labels[:, None] == column_labels
                counts = np.triu(np.ones_like(is_same), k=1) if is_diagonal else True
                yield ranks[~is_same & counts], ranks[is_same & counts]

    def _rank(self, rows: slice, columns: slice) -> Ranks:
        """Returns (R, C) ranks: unsigned integers in the order of the distances."""
        first = self._frame.place_rows(self._rows.vectors(rows))
        second = self._frame.place_rows(self._columns.vectors(columns))
        values: DoubleArray = first @ second.T
        if self._frame.metric == "cosine":
            np.negative(values, out=values)
        else:
            values *= -2
            values += np.einsum("rd,rd->r", first, first)[:, None]
            values += np.einsum("cd,cd->c", second, second)
        values *= _STEPS
        np.rint(values, out=values)
        # Adding zero turns -0 into 0, which has another rank.
        bits = (values.astype(np.float32) + np.float32(0)).view(np.uint32)
        is_negative = bits >> 31 == 1
        return np.where(is_negative, ~bits, bits | np.uint32(1 << 31))

    def to_score(self, rank: int) -> float:
        """Returns the score of a search with this rank: a cosine, or a Euclidean distance."""
        bits = rank ^ (1 << 31) if rank >> 31 else ~rank & 0xFFFFFFFF
        value = float(np.array([bits], dtype=np.uint32).view(np.float32)[0]) / _STEPS
        if self._frame.metric == "cosine":
            return -value
        return float(np.sqrt(value)) * self._frame.scale


@dataclass(frozen=True)
class _ByClass:
    """Embeddings in the order of their classes."""

    embeddings: FloatArray
    """In the given order: only blocks are copied."""
    order: IntArray
    labels: IntArray
    """Sorted."""

    @classmethod
    def sort(cls, embeddings: FloatArray, labels: IntArray) -> Self:
        order = np.argsort(labels, kind="stable")
        return cls(embeddings, order, labels[order])

    def vectors(self, block: slice) -> FloatArray:
        return self.embeddings[self.order[block]]

    def blocks(self, side: int) -> Iterator[slice]:
        edges = [*range(0, len(self.order), side), len(self.order)]
        return (slice(start, stop) for start, stop in pairwise(edges))


def _overlap(first: IntArray, second: IntArray) -> bool:
    return bool(first[0] <= second[-1] and second[0] <= first[-1])


def _count_coarse(pairs: _Pairs) -> tuple[IntArray, IntArray]:
    """Returns the numbers of pairs by the upper half of their ranks, for both kinds of pairs."""
    found = np.zeros((2, _HALF), dtype=np.int64)
    for both in pairs:
        for counts, ranks in zip(found, both, strict=True):
            counts += np.bincount(ranks >> _HALF_BITS, minlength=_HALF)
    return found[0], found[1]


def _count_fine(pairs: _Pairs, wanted: Sequence[int]) -> tuple[IntArray, IntArray]:
    """Returns the numbers of pairs by the lower half of their ranks, for wanted upper halves.

    Returns:
        A row for each wanted upper half, for both kinds of pairs.
    """
    row = np.full(_HALF, -1, dtype=np.int64)
    row[list(wanted)] = np.arange(len(wanted))
    found = np.zeros((2, len(wanted) * _HALF), dtype=np.int64)
    for both in pairs:
        for counts, ranks in zip(found, both, strict=True):
            rows = row[ranks >> _HALF_BITS]
            is_wanted = rows >= 0
            cells = rows[is_wanted] * _HALF + (ranks[is_wanted] & (_HALF - 1))
            # Few ranks: counting all cells of the table for each block would take longer.
            np.add.at(counts, cells, 1)
    return found[0].reshape(-1, _HALF), found[1].reshape(-1, _HALF)
