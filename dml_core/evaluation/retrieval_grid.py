"""Draws queries with their nearest images, and marks which are of the same class."""

# K = neighbours, N = images, Q = queries

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib import font_manager
from PIL import Image, ImageDraw, ImageFont

from dml_core.data.prepared import ImageSet
from dml_core.evaluation.arrays import BoolArray, IntArray, Metric, split_by_role
from dml_core.evaluation.neighbors import iterate_neighbors
from dml_core.seeding import numpy_stream

# Blue and vermillion of Okabe and Ito, which colour-blind people can distinguish. The style of the
# frame and the mark in the corner carry the same information in grey.
RIGHT_COLOR = (0, 114, 178)
WRONG_COLOR = (213, 94, 0)
QUERY_COLOR = (64, 64, 64)
_BACKGROUND = (255, 255, 255)
_FRAME_PX = 4
_GAP_PX = 8
_NAME_PX = 20


@dataclass(frozen=True)
class Retrieval:
    """Example queries and their nearest images."""

    queries: IntArray
    """(Q,) indices of the queries."""
    neighbors: IntArray
    """(Q, K) indices of the nearest images, nearest first."""
    is_right: BoolArray
    """(Q, K) whether they have the query's class."""


def find_examples(
    embeddings: npt.NDArray[np.floating],
    images: ImageSet,
    *,
    metric: Metric,
    num_queries: int = 8,
    num_neighbors: int = 8,
    seed: int = 0,
    queries: IntArray | None = None,
) -> Retrieval:
    """Returns the nearest images of example queries, which are of different classes if possible.

    The queries depend only on the images and the seed, so they are the same for every model.

    Args:
        embeddings: (N, D), one row per image.
        images: the embedded images; with roles, queries are searched in the gallery.
        metric: distance that the embeddings were trained for.
        num_queries: Q; fewer if there are fewer images.
        num_neighbors: K; fewer if the gallery has fewer.
        seed: seed of the choice of queries.
        queries: (Q,) indices of the queries; None chooses them.
    """
    if len(embeddings) != len(images):
        raise ValueError(
            "retrieval grid: there must be one embedding for each image. "
            f"Got {len(embeddings)} embeddings of {len(images)} images."
        )
    vectors = np.ascontiguousarray(embeddings, dtype=np.float32)
    rows = np.arange(len(images))
    query_rows, gallery_rows = split_by_role(images.roles, num_rows=len(images)).split(rows)
    if queries is None:
        queries = _choose_queries(query_rows, images.labels, num_queries=num_queries, seed=seed)
    found = gallery_rows if gallery_rows is not None else query_rows
    # The query may be its own first neighbour, so one more is searched.
    blocks = iterate_neighbors(
        vectors[queries], vectors[found], num_neighbors=num_neighbors + 1, metric=metric
    )
    listed = found[np.concatenate([neighbors for _, neighbors in blocks])]
    kept = [row[row != query][:num_neighbors] for query, row in zip(queries, listed, strict=True)]
    neighbors = np.stack(kept).astype(np.int64)
    is_right = images.labels[neighbors] == images.labels[queries][:, None]
    return Retrieval(queries, neighbors, is_right)


def draw_retrieval_grid(
    images: ImageSet,
    retrieval: Retrieval,
    *,
    title: str = "",
    names: Sequence[str] = (),
    cell_px: int = 72,
) -> Image.Image:
    """Returns a picture with one row per query: the query, then its nearest images.

    Images of the query's class have a solid blue frame and a tick, others a dashed orange frame
    and a cross.

    Args:
        images: the images.
        retrieval: what to draw.
        title: above everything.
        names: a name above each row; empty for none.
        cell_px: side of an image.
    """
    num_rows, num_found = retrieval.neighbors.shape
    step, top, bottom = cell_px + 2 * _FRAME_PX + _GAP_PX, 52 if title else 30, 28
    name_px = _NAME_PX if names else 0
    width = max((num_found + 1) * step + 3 * _GAP_PX, 420)
    foot = top + num_rows * (step + name_px)
    canvas = Image.new("RGB", (width, foot + bottom), _BACKGROUND)
    pen = ImageDraw.Draw(canvas)
    font = _load_font(14)
    if title:
        pen.text((_GAP_PX, 6), _printable(title), fill=(0, 0, 0), font=_load_font(16))
    pen.text((_GAP_PX, top - 20), "query", fill=(0, 0, 0), font=font)
    for row in range(num_rows):
        y = top + row * (step + name_px) + name_px
        if names:
            pen.text((_GAP_PX, y - name_px), _printable(names[row]), fill=(0, 0, 0), font=font)
        query = _thumbnail(images.image(int(retrieval.queries[row])), cell_px)
        _place(canvas, query, (_GAP_PX, y), frame=_draw_query_frame)
        for rank in range(num_found):
            x = (rank + 1) * step + 2 * _GAP_PX
            picture = _thumbnail(images.image(int(retrieval.neighbors[row, rank])), cell_px)
            is_right = bool(retrieval.is_right[row, rank])
            _place(canvas, picture, (x, y), frame=_right_frame if is_right else _wrong_frame)
            if row == 0:
                pen.text((x, top - 20), str(rank + 1), fill=(0, 0, 0), font=font)
    _draw_legend(pen, (_GAP_PX, foot + 4), font)
    return canvas


def save_retrieval_grid(picture: Image.Image, path: Path) -> Path:
    """Writes a picture as PNG and returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path, format="PNG", optimize=True)
    return path


def _choose_queries(rows: IntArray, labels: IntArray, *, num_queries: int, seed: int) -> IntArray:
    order = numpy_stream(seed, "evaluation.retrieval_grid").permutation(rows)
    _, first = np.unique(labels[order], return_index=True)
    # One image of each class in random order, then the others.
    is_first = np.isin(np.arange(len(order)), first)
    ranked: IntArray = np.concatenate([order[is_first], order[~is_first]])
    return ranked[:num_queries]


def _thumbnail(pixels: np.ndarray, size_px: int) -> Image.Image:
    array = np.ascontiguousarray(pixels)
    picture = Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array).convert("RGB")
    scale = size_px / max(picture.size)
    width, height = (max(1, round(side * scale)) for side in picture.size)
    # Enlarged drawings stay sharp; reduced photographs are antialiased.
    method = Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.LANCZOS
    square = Image.new("RGB", (size_px, size_px), (235, 235, 235))
    offset = ((size_px - width) // 2, (size_px - height) // 2)
    square.paste(picture.resize((width, height), method), offset)
    return square


Box = tuple[int, int, int, int]


def _place(
    canvas: Image.Image,
    picture: Image.Image,
    corner: tuple[int, int],
    *,
    frame: Callable[[ImageDraw.ImageDraw, Box], None],
) -> None:
    x, y = corner
    canvas.paste(picture, (x + _FRAME_PX, y + _FRAME_PX))
    side = picture.width + 2 * _FRAME_PX - 1
    frame(ImageDraw.Draw(canvas), (x, y, x + side, y + side))


def _draw_query_frame(pen: ImageDraw.ImageDraw, box: Box) -> None:
    pen.rectangle(box, outline=QUERY_COLOR, width=2)


def _right_frame(pen: ImageDraw.ImageDraw, box: Box) -> None:
    pen.rectangle(box, outline=RIGHT_COLOR, width=_FRAME_PX)
    x, y = _badge(pen, box, RIGHT_COLOR)
    pen.line([(x - 4, y), (x - 1, y + 3), (x + 4, y - 4)], fill=_BACKGROUND, width=2)


def _wrong_frame(pen: ImageDraw.ImageDraw, box: Box) -> None:
    left, top, right, bottom = box
    inset = _FRAME_PX // 2
    for start in range(0, right - left, 14):
        stop = min(start + 6, right - left)
        for y in (top + inset, bottom - inset):
            pen.line([(left + start, y), (left + stop, y)], fill=WRONG_COLOR, width=_FRAME_PX)
        for x in (left + inset, right - inset):
            pen.line([(x, top + start), (x, top + stop)], fill=WRONG_COLOR, width=_FRAME_PX)
    x, y = _badge(pen, box, WRONG_COLOR)
    pen.line([(x - 3, y - 3), (x + 3, y + 3)], fill=_BACKGROUND, width=2)
    pen.line([(x - 3, y + 3), (x + 3, y - 3)], fill=_BACKGROUND, width=2)


def _badge(pen: ImageDraw.ImageDraw, box: Box, color: tuple[int, int, int]) -> tuple[int, int]:
    x, y = box[2] - 8, box[3] - 8
    pen.ellipse((x - 7, y - 7, x + 7, y + 7), fill=color)
    return x, y


def _draw_legend(
    pen: ImageDraw.ImageDraw, corner: tuple[int, int], font: ImageFont.FreeTypeFont
) -> None:
    x, y = corner
    for frame, text in ((_right_frame, "same class"), (_wrong_frame, "another class")):
        frame(pen, (x, y, x + 19, y + 19))
        pen.text((x + 26, y + 1), text, fill=(0, 0, 0), font=font)
        x += 140


def _load_font(size: int) -> ImageFont.FreeTypeFont:
    # matplotlib ships this font, so every machine draws the same picture.
    return ImageFont.truetype(font_manager.findfont("DejaVu Sans"), size)


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)[:80]
