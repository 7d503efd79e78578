"""The indexes of a study: one a folder of images, made with one of its models."""

import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dml_core.data.atomic_folder import folder_lock, remove_leftovers
from dml_core.retrieval.folder_index import (
    FACTS_FILE,
    MODEL_FOLDER,
    FolderIndex,
    Neighbor,
    read_facts,
)
from dml_core.retrieval.image_files import FolderError, explain_unreadable, resolve_folder
from dml_core.retrieval.updating import IndexChanges, update_index
from dml_core.retrieval.vector_index import EXACT_BELOW
from tasks.export.winner import ChosenModel, choose_model
from tasks.report_page.tables import make_command
from tasks.study import StudyContext

if TYPE_CHECKING:
    from tasks.tracking.embedding_loader import EmbeddingModel


@dataclass(frozen=True)
class OpenIndex:
    """An index with the model that made it."""

    index: FolderIndex
    model: "EmbeddingModel"
    name: str
    """Arm and seed of the model."""

    def search_files(self, paths: Sequence[Path], count: int) -> list[list[Neighbor]]:
        """Returns the nearest images of each picture.

        Raises:
            ValueError: where a picture cannot be used, with its path.
        """
        from dml_core.data.image_decoding import BadImage

        pixels = []
        for path in paths:
            try:
                pixels.append(self.model.prepare(path))
            except BadImage as error:
                reason = explain_unreadable(path, error.reason)
                raise ValueError(f"the picture {path} {reason}.") from error
        return self._search(pixels, count)

    def search_content(self, content: bytes, count: int) -> list[Neighbor]:
        """Returns the nearest images of the bytes of an image file; raises BadImage for others."""
        return self._search([self.model.prepare(content)], count)[0]

    def search_indexed(self, position: int, count: int) -> list[Neighbor]:
        """Returns the nearest images of an indexed image, itself first."""
        assert self.index.vectors is not None, "an indexed image has a vector"
        return self.index.search(self.index.vectors.vector(position)[None], count)[0]

    def show_score(self, score: float) -> str:
        """Returns a score with its name."""
        kind = "similarity" if self.index.metric == "cosine" else "distance"
        return f"{kind} {score:.3f}"

    def _search(self, pixels: list[Any], count: int) -> list[list[Neighbor]]:
        import numpy as np

        return self.index.search(self.model.embed(np.stack(pixels)), count)


def build_index(
    context: StudyContext,
    folder: Path,
    *,
    arm: str | None = None,
    seed: int | None = None,
    rebuild: bool = False,
    exact_below: int = EXACT_BELOW,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    on_step: Callable[[str], None] = lambda step: None,
) -> tuple[FolderIndex, IndexChanges]:
    """Makes the index of a folder, or brings it up to date; safe to run twice.

    Args:
        context: the study.
        folder: the images.
        arm: another arm than the recommended one.
        seed: another seed than the best on validation.
        rebuild: embed all images anew.
        exact_below: the number of images from which a graph replaces the exact search.
        on_progress: called with the number of images done and of all to embed.
        on_step: called with what is done next, in a few words.

    Raises:
        ValueError: where the folder cannot be used, or another model made its index.
    """
    from dml_core.training.checkpoint import load_checkpoint
    from tasks.tracking.embedding_loader import EmbeddingModel
    from tasks.tracking.packing import pack_model

    root = resolve_folder(folder)
    chosen = choose_model(context, arm=arm, seed=seed)
    origin = _describe_origin(chosen, arm=arm, seed=seed)
    target = locate_index(context, root)
    with folder_lock(target), tempfile.TemporaryDirectory() as temporary:
        remove_leftovers(target)
        is_there = (target / FACTS_FILE).is_file() and not rebuild
        if is_there:
            _check_origin(context, target, origin)
            index, packed = FolderIndex.load(target), target / MODEL_FOLDER
            model = EmbeddingModel(packed)
        else:
            on_step("packing the model")
            packed = Path(temporary) / MODEL_FOLDER
            pack_model(load_checkpoint(chosen.checkpoint), packed)
            model = EmbeddingModel(packed)
            index = FolderIndex(root, "cosine" if model.metric == "cosine" else "euclidean", origin)
        changes = update_index(
            index,
            model,
            save=lambda: index.save(target, model=packed),
            exact_below=exact_below,
            on_progress=on_progress,
            on_step=on_step,
        )
    return index, changes


def open_index(context: StudyContext, folder: Path | None = None) -> OpenIndex:
    """Returns an index of a study: that of a folder, or the only one.

    Raises:
        ValueError: where there is none, there are several, or the study's model has changed since.
    """
    from tasks.tracking.embedding_loader import EmbeddingModel

    target = _find_index(context, folder)
    origin = read_facts(target)["origin"]
    chosen = choose_model(context, arm=origin["named_arm"], seed=origin["named_seed"])
    _check_origin(
        context,
        target,
        _describe_origin(chosen, arm=origin["named_arm"], seed=origin["named_seed"]),
    )
    index = FolderIndex.load(target)
    return OpenIndex(index, EmbeddingModel(target / MODEL_FOLDER), chosen.name)


def search_folder(context: StudyContext) -> Path:
    """Returns the folder with a study's indexes; DVC does not track it."""
    return context.sweep_folder.parent / "search"


def locate_index(context: StudyContext, root: Path) -> Path:
    """Returns where the index of a folder is stored: by its name, and a hash of its path."""
    name = re.sub(r"[^\w.-]+", "_", root.name, flags=re.ASCII).strip("._") or "images"
    digest = hashlib.sha256(os.fsencode(root)).hexdigest()[:8]
    return search_folder(context) / f"{name[:40]}-{digest}"


def _find_index(context: StudyContext, folder: Path | None) -> Path:
    study = context.request.folder_name
    if folder is not None:
        target = locate_index(context, resolve_folder(folder))
        if not (target / FACTS_FILE).is_file():
            raise FolderError(
                f"study {study} has no index of {folder} yet. "
                f"Make it: {make_command(context.request, 'index', str(folder))}"
            )
        return target
    found = sorted(path.parent for path in search_folder(context).glob(f"[!.]*/{FACTS_FILE}"))
    if not found:
        raise FolderError(
            f"study {study} has no index yet. Make one of your images: "
            f"{make_command(context.request, 'index', 'FOLDER')}"
        )
    if len(found) > 1:
        roots = ", ".join(read_facts(path)["root"] for path in found)
        raise FolderError(
            f"study {study} has {len(found)} indexes. Choose one with --folder: {roots}"
        )
    return found[0]


def _describe_origin(chosen: ChosenModel, *, arm: str | None, seed: int | None) -> dict[str, Any]:
    return {
        "model": chosen.name,
        "checkpoint": chosen.digest(),
        # None where the default was taken: it may become another model.
        "named_arm": arm,
        "named_seed": seed,
    }


def _check_origin(context: StudyContext, target: Path, origin: dict[str, Any]) -> None:
    facts = read_facts(target)
    former = facts["origin"]
    if former["checkpoint"] == origin["checkpoint"]:
        return
    named = ("--arm", origin["named_arm"]) if origin["named_arm"] else ()
    named += ("--seed", str(origin["named_seed"])) if origin["named_seed"] is not None else ()
    again = make_command(context.request, "index", facts["root"], *named, "--rebuild")
    raise ValueError(
        f"the index of {facts['root']} was made with another model: {former['model']} "
        f"({former['checkpoint'][:12]}), where the study's is now {origin['model']} "
        f"({origin['checkpoint'][:12]}). Their embeddings do not compare. Rebuild it: {again}"
    )
