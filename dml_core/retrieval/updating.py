"""Brings the index of a folder up to date: only new and changed images are embedded."""

# N = images, D = embedding dim, S = input size, C = channels

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dml_core.data.parallel import count_cores, prefetch
from dml_core.evaluation.arrays import FloatArray
from dml_core.retrieval.folder_index import FolderIndex
from dml_core.retrieval.image_files import FolderListing, explain_unreadable, list_image_files
from dml_core.retrieval.vector_index import EXACT_BELOW

SAVE_EVERY = 20_000
"""New images between two saves: an interrupted command resumes from the last one."""


class Embedder(Protocol):
    """A model that embeds images, as `tasks.tracking.embedding_loader.EmbeddingModel`."""

    metric: Any
    batch_size: int

    def prepare(self, image: Any) -> np.ndarray:
        """Returns an image as (S, S, C) pixels; raises ValueError where it cannot be used."""

    def embed(self, pixels: np.ndarray) -> np.ndarray:
        """Returns the (N, D) embeddings of (N, S, S, C) pixels."""


@dataclass(frozen=True)
class IndexChanges:
    """How an index changed when it was brought up to date, in numbers of images."""

    added: int
    changed: int
    removed: int
    """Files that are gone, readable or not."""
    kept: int
    listing: FolderListing


def update_index(
    index: FolderIndex,
    embedder: Embedder,
    *,
    save: Callable[[], None],
    exact_below: int = EXACT_BELOW,
    save_every: int = SAVE_EVERY,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    on_step: Callable[[str], None] = lambda step: None,
) -> IndexChanges:
    """Brings an index up to date with its folder: only new and changed images are embedded.

    Args:
        index: changed in place.
        embedder: the model of the index.
        save: stores the index; called after every `save_every` images and at the end.
        exact_below: the number of images from which a graph replaces the exact search.
        save_every: most images that an interruption loses.
        on_progress: called with the number of images done and of all to embed.
        on_step: called with what is done next, in a few words.
    """
    listing = list_image_files(index.root)
    known = dict(zip(index.files, index.stamps, strict=True))
    known |= {path: stamp for path, (stamp, _) in index.unreadable.items()}
    removed = known.keys() - listing.files.keys()
    changed = {path for path in known.keys() & listing.files if known[path] != listing.files[path]}
    new = [path for path in listing.files if path not in known or path in changed]
    index.drop(removed | changed)
    kept, done = len(index), 0
    on_step("embedding")
    on_progress(0, len(new))
    # Threads decode the images, and each sets filters of warnings: restored here at the end.
    with warnings.catch_warnings():
        for start in range(0, len(new), save_every):
            chunk = new[start : start + save_every]
            for paths, embeddings, reasons in _embed_files(index.root, chunk, embedder):
                index.extend(paths, [listing.files[path] for path in paths], embeddings)
                index.unreadable |= {p: (listing.files[p], why) for p, why in reasons.items()}
                done += len(paths) + len(reasons)
                on_progress(done, len(new))
            if start + save_every < len(new):
                save()
    on_step("arranging the index")
    is_replaced = index.settle(exact_below=exact_below)
    if new or removed or is_replaced:
        on_step("writing the index")
        save()
    again = len(changed & set(index.files[kept:]))
    return IndexChanges(len(index) - kept - again, again, len(removed), kept, listing)


def _embed_files(
    root: Path, paths: Sequence[str], embedder: Embedder
) -> Iterator[tuple[list[str], FloatArray, dict[str, str]]]:
    """Yields the readable files of each batch, their embeddings, and the reasons of the others."""
    batches = [
        paths[start : start + embedder.batch_size]
        for start in range(0, len(paths), embedder.batch_size)
    ]

    def read(batch: Sequence[str]) -> tuple[list[str], list[np.ndarray], dict[str, str]]:
        good, pixels, reasons = [], [], {}
        for path in batch:
            try:
                pixels.append(embedder.prepare(root / path))
                good.append(path)
            except ValueError as error:
                reason = str(getattr(error, "reason", error))
                reasons[path] = explain_unreadable(root / path, reason)
        return good, pixels, reasons

    # Few threads ahead: each holds a batch of pixels.
    for good, pixels, reasons in prefetch(read, batches, workers=count_cores()):
        if not good:
            yield [], np.empty((0, 0), np.float32), reasons
            continue
        embeddings = embedder.embed(np.stack(pixels)).astype(np.float32)
        rows = np.flatnonzero(np.isfinite(embeddings).all(axis=1))
        kept = [good[row] for row in rows]
        for path in set(good) - set(kept):
            reasons[path] = "has an embedding that is not finite"
        yield kept, embeddings[rows], reasons
