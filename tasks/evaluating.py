"""Judges a study's winners on the test classes: the one reader of the test split."""

import json
from pathlib import Path

from prefect import task

from dml_core.data.parallel_map import count_cores
from dml_core.data.prepared import open_test
from dml_core.evaluation.of_checkpoint import embed_with_checkpoint
from dml_core.evaluation.of_winners import evaluate_winners
from dml_core.evaluation.retrieval_grid import (
    draw_retrieval_grid,
    find_examples,
    save_retrieval_grid,
)
from dml_core.studies.scores_file import StudyScores, collect_scores, write_scores
from dml_core.training.checkpoint import load_checkpoint
from tasks.context import StudyContext, StudyRequest, load_context

GRID_FILE = "retrieval.png"


@task
def evaluate_study(request: StudyRequest) -> Path:
    """Writes scores.json and a picture of what the best model finds; running it twice is safe."""
    context = load_context(request)
    winners = context.sweep_folder / "winners"
    if not winners.is_dir():
        raise FileNotFoundError(
            f"{winners} does not exist: study {request.study} has no winners yet. "
            f"Run: dml run {request.study}"
        )
    results = evaluate_winners(winners, workers=count_cores())
    scores = collect_scores(context.study.name, context.study.digest, results)
    _draw_examples(best_winner(context, scores), context.evaluate_folder / GRID_FILE)
    return write_scores(scores, context.evaluate_folder)


def best_winner(context: StudyContext, scores: StudyScores) -> Path:
    """Returns the folder of the model to ship: the arm best on validation, its first seed.

    It is chosen on validation like everything else; the test classes only judge it.
    """
    text = (context.sweep_folder / "winners.json").read_text(encoding="utf-8")
    validation = {arm: winner.get("score") or 0.0 for arm, winner in json.loads(text).items()}
    arm = max(sorted(scores.scores), key=lambda name: validation.get(name, 0.0))
    return context.sweep_folder / "winners" / f"{arm}-seed{min(scores.scores[arm])}"


def _draw_examples(winner: Path, target: Path) -> None:
    checkpoint = load_checkpoint(winner / "checkpoint.pt")
    images, _ = open_test(checkpoint.config.data)
    found = find_examples(
        embed_with_checkpoint(checkpoint, images),
        images,
        metric=checkpoint.config.retrieval_metric,
    )
    save_retrieval_grid(draw_retrieval_grid(images, found, title=winner.name), target)
