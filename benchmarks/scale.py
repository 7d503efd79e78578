"""The pipeline at scale: many trials, many winners, a large test set, and a run's two ends."""

import resource
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import faiss
import numpy as np

from benchmarks.drawn_data import drawn_trial
from benchmarks.first_epoch import measure_ends
from benchmarks.many_trials import measure_trials
from benchmarks.rows import Row, make_row
from benchmarks.settings import Settings
from benchmarks.stub_sweeps import simulated_nodes
from dml_core.config.pipeline import DataAccessConfig, RayConfig
from dml_core.data.prepared import open_development
from dml_core.evaluation.arrays import FloatArray
from dml_core.evaluation.neighbors import NeighborSearch
from dml_core.evaluation.spreading import RunParts, Spread, run_here
from dml_core.training.checkpoint import save_checkpoint
from dml_core.training.determinism import limited_threads
from dml_core.training.trial import run_trial
from tasks.evaluate_models import PART_IMAGES, ModelJob, run_work, score_winner
from tasks.sweep.node_job import node_jobs
from tasks.sweep.ray_map import map_on_ray

GROUP = "scale"
CORES, NODES = 2, 8
RAY = RayConfig(max_concurrent=CORES)
SMALL_MODEL = {"model.width": 8, "training.epochs": 1, "evaluation.kmeans_iterations": 20}


@dataclass(frozen=True)
class Size:
    """Amount of work."""

    num_winners: int
    num_vectors: int
    part_size: int


LONG = Size(48, 250_000, PART_IMAGES)
SHORT = Size(2, 3_000, 1_000)
DIM, NEIGHBORS = 128, 32


def run_scale(settings: Settings) -> list[Row]:
    """Returns the rows of all parts; a short run needs no cluster and compares results."""
    if settings.short:
        return [*_measure_winners(SHORT, on_ray=False), *_measure_search(SHORT, run_here)]
    with simulated_nodes(RAY, NODES):
        rows = [
            *_measure_winners(LONG, on_ray=True),
            *_measure_search(LONG, partial(map_on_ray, config=RAY)),
        ]
    return [*rows, *measure_ends(), *measure_trials()]


def _measure_winners(size: Size, *, on_ray: bool) -> list[Row]:
    with _drawn_winners(size.num_winners) as jobs:
        work = [(score_winner, job) for job in jobs]
        alone, one = _time(lambda: list(run_here(run_work, None, work)))
        rows, before = [], one
        for lanes in (CORES, NODES):
            config = RayConfig(max_concurrent=lanes)
            run: Any = partial(map_on_ray, config=config) if on_ray else run_here
            # The workers start and load torch.
            list(run(run_work, None, work[:lanes]))
            spread, seconds = _time(partial(_run_all, run, work))
            is_first = lanes == CORES
            row = make_row(
                GROUP,
                f"{size.num_winners} winners on {lanes} {'cores' if is_first else 'nodes'}",
                ours=[size.num_winners / seconds],
                theirs=[size.num_winners / before],
                target=1.8 if is_first else 0.9,
                direction="at least",
                unit="winners/s",
                against="one process" if is_first else f"{CORES} cores",
                note="small network, glyphs, warm workers"
                + ("" if is_first else f"; logical CPUs of a machine with {CORES} cores"),
                difference=float(alone != spread),
            )
            rows, before = [*rows, row], seconds
    return rows


def _run_all(run: Any, work: Any) -> Any:
    return list(run(run_work, None, work))


@contextmanager
def _drawn_winners(count: int) -> Iterator[list[ModelJob]]:
    """Yields the jobs of equal winners of a small network on glyphs."""
    with drawn_trial(**SMALL_MODEL) as config:
        folder = config.data.prepared_path.parent / "winners"
        first = folder / "arm-seed0"
        run_trial(
            config,
            open_development(config.data),
            on_epoch_end=lambda _, state: save_checkpoint(state, first / "checkpoint.pt"),
        )
        for seed in range(1, count):
            shutil.copytree(first, folder / f"arm-seed{seed}")
        place = node_jobs(DataAccessConfig())(config)
        yield [
            ModelJob(f"arm-seed{seed}", place, str(folder / f"arm-seed{seed}"))
            for seed in range(count)
        ]


def _measure_search(size: Size, run: RunParts) -> list[Row]:
    stream = np.random.default_rng(0)
    vectors = stream.standard_normal((size.num_vectors, DIM), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    with limited_threads(CORES):
        whole, at_once = _time(lambda: _search_in_one_piece(vectors))
    spread = Spread(partial(_run_noted, run), size.part_size, lanes=CORES)
    search = NeighborSearch(vectors, metric="cosine", compare_once_from=16_384, spread=spread)
    _peaks.clear()
    divided, in_parts = _time(lambda: np.concatenate([found for _, found in search(NEIGHBORS)]))
    name = f"search of {size.num_vectors:,} x {DIM}"
    others = _without_self(whole)
    return [
        make_row(
            GROUP,
            f"{name} in blocks",
            ours=[in_parts],
            theirs=[at_once],
            target=1.1,
            unit="s",
            against=f"faiss in one piece, {CORES} threads",
            note=f"{NEIGHBORS} neighbours, parts of {size.part_size:,} queries",
            # Distances that differ by rounding may swap ranks.
            difference=float((others != divided).mean()),
            tolerance=1e-4,
        ),
        make_row(
            GROUP,
            f"{name}, memory of a part",
            ours=[max(_peaks)],
            target=1024.0,
            unit="MiB",
            note="growth of the worker's peak, without the shared vectors",
        ),
    ]


def _search_in_one_piece(vectors: FloatArray) -> Any:
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    return index.search(vectors, NEIGHBORS + 1)[1]


def _without_self(positions: Any) -> Any:
    own = np.arange(len(positions))[:, None]
    keep = positions != own
    keep[keep.all(axis=1), -1] = False
    return positions[keep].reshape(len(positions), -1)


_peaks: list[float] = []
"""MiB of each part."""


def _run_noted(run: RunParts, function: Any, shared: Any, parts: Any, /) -> Iterator[Any]:
    for result, peak in run(partial(_note_peak, function), shared, parts):
        _peaks.append(peak)
        yield result


def _note_peak(function: Any, shared: Any, part: Any) -> tuple[Any, float]:
    # The shared vectors count as resident once they are read.
    float(np.asarray(getattr(shared, "vectors", shared)).sum())
    before = _peak_mebibytes()
    return function(shared, part), _peak_mebibytes() - before


def _peak_mebibytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _time(work: Any) -> tuple[Any, float]:
    started = time.perf_counter()
    result = work()
    return result, time.perf_counter() - started
