"""Reads the test classes once for every winner of a sweep."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dml_core.data.parallel_map import map_in_order
from dml_core.data.prepared import open_test
from dml_core.evaluation.of_checkpoint import evaluate_checkpoint
from dml_core.process_memory import prepare_memory
from dml_core.training.checkpoint import load_checkpoint


@dataclass(frozen=True)
class WinnerScores:
    """The test scores of one arm's winner, trained with one seed."""

    arm: str
    seed: int
    scores: dict[str, float]
    data_hash: str
    split_hash: str


def evaluate_winners(
    folder: Path, *, workers: int, on_progress: Callable[[int, int], None] = lambda *_: None
) -> Iterator[WinnerScores]:
    """Yields the test scores of each `<arm>-seed<k>` folder, by name.

    Args:
        folder: the winners of a sweep, each with its checkpoint.
        workers: processes.
        on_progress: called with (done, in all).
    """
    folders = sorted(path for path in folder.iterdir() if (path / "checkpoint.pt").exists())
    results = map_in_order(_evaluate_one, folders, workers=workers, chunk_size=1)
    for done, result in enumerate(results, start=1):
        on_progress(done, len(folders))
        yield result


def _evaluate_one(folder: Path) -> WinnerScores:
    prepare_memory()
    checkpoint = load_checkpoint(folder / "checkpoint.pt")
    images, info = open_test(checkpoint.config.data)
    if info.content_hash != checkpoint.data_hash:
        raise ValueError(
            f"{folder.name} was trained on other data than {checkpoint.config.data.prepared_path} "
            f"holds now: its hash is {checkpoint.data_hash}, theirs {info.content_hash}. "
            "Run the sweep again."
        )
    arm, _, seed = folder.name.rpartition("-seed")
    scores = evaluate_checkpoint(
        checkpoint,
        images,
        evaluation=checkpoint.config.evaluation,
        content_hash=info.content_hash,
    )
    return WinnerScores(arm, int(seed), scores, info.content_hash, info.split_hash)
