"""Evaluates one model in the process that received its job: a worker of any node, or the driver.

The module imports no torch: a driver that leaves the work to a cluster needs none, and a worker
sets up its memory before torch is loaded.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dml_core.config.image_changes import ImageChange
from dml_core.config.pipeline import RayConfig
from dml_core.data.prepared import open_test
from dml_core.data.writing import DEVELOPMENT, TEST
from dml_core.measures.of_study import MEASURES
from dml_core.measures.results import (
    CHECKPOINT_FILE,
    GRID_FILE,
    MAP_FILE,
    Measured,
    WinnerFolder,
    WinnerScores,
)
from dml_core.process_memory import prepare_memory
from tasks.sweep.cluster import count_concurrent
from tasks.sweep.node_job import NodeJob
from tasks.sweep.ray_map import map_on_ray

if TYPE_CHECKING:
    import numpy as np

    from dml_core.evaluation.spreading import Spread
    from dml_core.measures.model_scores import EmbedImages

PART_IMAGES = 16_384
"""Images of a part: embedding or searching them takes seconds to minutes, starting a task less."""


@dataclass(frozen=True)
class ModelJob:
    """A model to evaluate, as plain values: a winner of a sweep, or a network without training."""

    name: str
    """Name of the winner's folder, or of what stands for no training."""
    place: NodeJob
    folder: str = ""
    """The winner's folder on the driver; empty without training."""
    content: Any = None
    """Ray's reference to the bytes of the checkpoint; None reads it in the folder."""
    split_on: RayConfig | None = None
    """How the tasks of a large test set run; None does all in this process."""
    part_images: int = PART_IMAGES
    """Images of such a task."""

    def send(self) -> "ModelJob":
        """Returns the job with its checkpoint, for nodes that do not share the folder."""
        import numpy as np
        import ray

        if not self.folder:
            return self
        return replace(self, content=ray.put(np.fromfile(self._checkpoint, dtype=np.uint8)))

    @property
    def _checkpoint(self) -> Path:
        return Path(self.folder) / CHECKPOINT_FILE

    @contextmanager
    def opened(self, part: str) -> Iterator[WinnerFolder]:
        """Yields the winner with its data on this node, which it fetches if they are missing."""
        prepare_memory()
        data = self.place.place(part).data
        arm, _, seed = self.name.rpartition("-seed")
        if self.content is None:
            yield WinnerFolder(arm, int(seed), Path(self.folder), data)
            return
        import ray

        with tempfile.TemporaryDirectory(prefix="dml-winner-") as folder:
            ray.get(self.content).tofile(Path(folder) / CHECKPOINT_FILE)
            yield WinnerFolder(arm, int(seed), Path(folder), data)

    @property
    def spread(self) -> "Spread | None":
        """How its evaluation is divided."""
        from dml_core.evaluation.spreading import Spread

        if self.split_on is None:
            return None
        run = partial(map_on_ray, config=self.split_on)
        return Spread(run, self.part_images, lanes=count_concurrent(self.split_on))

    @property
    def embed_images(self) -> "EmbedImages | None":
        """Embeds the test images in parts on all nodes; None if it is not divided."""
        return None if self.split_on is None else partial(_embed_in_parts, self)


def _embed_in_parts(job: ModelJob, change: ImageChange | None) -> "np.ndarray":
    import numpy as np

    from dml_core.evaluation.spreading import split_rows

    assert job.split_on is not None
    config = job.place.place(TEST)
    images, _ = open_test(config.data)
    parts = split_rows(
        len(images), part_size=job.part_images, multiple=config.evaluation.batch_size
    )
    embed = partial(_embed_rows, change=change)
    return np.concatenate(list(map_on_ray(embed, job, parts, config=job.split_on)))


def _embed_rows(job: ModelJob, rows: range, *, change: ImageChange | None) -> "np.ndarray":
    from dml_core.measures.model_scores import embed_untrained, embed_with_checkpoint

    if not job.folder:
        prepare_memory()
        config = job.place.place(TEST)
        images, _ = open_test(config.data)
        return embed_untrained(job.name, images, config, rows=rows)
    with job.opened(TEST) as winner:
        checkpoint = winner.load()
        images, info = open_test(checkpoint.config.data)
        # Activations of changed pixels are not kept.
        content_hash = info.content_hash if change is None else ""
        return embed_with_checkpoint(
            checkpoint, images, content_hash=content_hash, change=change, rows=rows
        )


def score_winner(job: ModelJob) -> WinnerScores:
    """Returns the test scores of a winner."""
    with job.opened(TEST) as winner:
        from dml_core.measures.model_scores import evaluate_winner

        return evaluate_winner(winner, embed_images=job.embed_images, spread=job.spread)


def score_untrained(job: ModelJob) -> dict[str, float]:
    """Returns what no training gives on the test images."""
    prepare_memory()
    config = job.place.place(TEST)
    from dml_core.measures.model_scores import evaluate_untrained

    return evaluate_untrained(job.name, config, embed_images=job.embed_images, spread=job.spread)


def show_model(job: ModelJob) -> dict[str, bytes]:
    """Returns files by name: neighbours, embeddings, their index and map, scores by class."""
    with job.opened(TEST) as winner, tempfile.TemporaryDirectory(prefix="dml-shown-") as name:
        folder = Path(name)
        _write_shown(job, winner, folder)
        return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def _write_shown(job: ModelJob, winner: WinnerFolder, folder: Path) -> None:
    from dml_core.evaluation.retrieval_grid import (
        draw_retrieval_grid,
        find_examples,
        save_retrieval_grid,
    )
    from dml_core.measures.class_evaluation import write_classes
    from dml_core.measures.embeddings import (
        make_embedding_map,
        write_embedding_map,
        write_embeddings,
    )
    from dml_core.measures.model_scores import embed_with_checkpoint

    checkpoint = winner.load()
    images, info = open_test(checkpoint.config.data)
    if job.embed_images is None:
        embeddings = embed_with_checkpoint(checkpoint, images, content_hash=info.content_hash)
    else:
        embeddings = job.embed_images(None)
    metric = checkpoint.config.retrieval_metric
    found = find_examples(embeddings, images, metric=metric)
    grid = draw_retrieval_grid(images, found, title=job.name)
    save_retrieval_grid(grid, folder / GRID_FILE)
    write_embeddings(embeddings, folder, metric=metric)
    write_classes(embeddings, images, folder, metric=metric)
    drawn = make_embedding_map(embeddings, images, metric=metric)
    write_embedding_map(drawn, images, folder / MAP_FILE)


def measure_winners(jobs: Sequence[ModelJob], *, name: str) -> Measured:
    """Returns a measure of some winners, taken in this process."""
    with ExitStack() as stack:
        winners = [stack.enter_context(job.opened(DEVELOPMENT)) for job in jobs]
        return MEASURES[name].take(winners)


Work = tuple[Callable[[Any], Any], Any]
"""One of the functions above, and its job or jobs."""


def run_work(_: None, work: Work) -> Any:
    """Returns the result of one piece of work."""
    function, job = work
    return function(job)
