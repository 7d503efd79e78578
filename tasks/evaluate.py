"""Judges a study's winners on the test classes: the one reader of the test split."""

from pathlib import Path
from statistics import fmean

from prefect import task

from dml_core.data.atomic_folder import folder_lock, replaced_folder
from dml_core.data.parallel import count_cores
from dml_core.data.prepared import open_test
from dml_core.measures.results import (
    SCORES_FILE,
    StudyScores,
    WinnerFolder,
    collect_scores,
    list_winners,
    write_scores,
)
from dml_core.trials.journal import read_epochs, selected_score
from tasks.guardian import guarded_folder
from tasks.machine_faults import clear_machine_faults
from tasks.retrying import is_momentary
from tasks.study import StudyContext, StudyRequest, load_context

GRID_FILE = "retrieval.png"
MAP_FILE = "embedding_map.csv"
FEW_IMAGES = 10_000
"""Images of all evaluations together that one process embeds as fast as others start."""


# No time-out: the time depends on the images and winners, and ending it would leave processes.
@task(retries=2, retry_delay_seconds=[2, 10], retry_condition_fn=is_momentary)
def evaluate_study(request: StudyRequest) -> Path:
    """Writes what the test classes say of a study's winners, whole or not at all; twice is safe.

    scores.json; of the best model what it finds (retrieval.png), its embeddings, an index and a
    map of them; and measures.json where the study asks for measures.
    """
    # What loads torch is imported where something is evaluated: a run with nothing to do reads
    # this module for `best_winner` alone.
    from dml_core.data.writing import DEVELOPMENT, TEST
    from dml_core.training.checkpoint import DamagedCheckpoint
    from tasks.versioning.restoring import ensure_whole
    from tasks.versioning.winners import restore_winners

    context = load_context(request)
    winners = context.sweep_folder / "winners"
    if not winners.is_dir():
        raise FileNotFoundError(
            f"{winners} does not exist: study {request.study} has no winners yet. "
            f"Run: dml run {request.study}"
        )
    with clear_machine_faults(context.evaluate_folder.parent):
        for data in context.datasets:
            ensure_whole(data, (DEVELOPMENT, TEST))
        try:
            return _evaluate(context, winners)
        except DamagedCheckpoint:
            # Looked for only now: whole checkpoints need not be read once more for it.
            restore_winners(context)
            return _evaluate(context, winners)


def _evaluate(context: StudyContext, winners: Path) -> Path:
    from dml_core.measures.model_scores import evaluate_winners
    from dml_core.measures.of_study import measure_study
    from tasks.versioning.winners import check_all_are_there

    check_all_are_there(context.sweep_folder)
    workers = _count_workers(list_winners(winners))
    if workers > 1:
        # Processes of a pool outlive a process that was killed.
        guarded_folder()
    results = evaluate_winners(winners, workers=workers)
    scores = collect_scores(context.study.name, context.study.digest, results)
    target = context.evaluate_folder
    with folder_lock(target), replaced_folder(target) as folder:
        _show_model(best_winner(context, scores), folder)
        measure_study(context.study.definition.measures, winners, folder)
        write_scores(scores, folder)
    return target / SCORES_FILE


def _count_workers(winners: list[WinnerFolder]) -> int:
    """Returns every core, or one where starting processes would take longer than the work."""
    if not winners:
        return 1
    images, _ = open_test(winners[0].load_config().data)
    return count_cores() if len(winners) * len(images) >= FEW_IMAGES else 1


def best_winner(context: StudyContext, scores: StudyScores) -> Path:
    """Returns the folder of the model to ship: the arm best on validation, its first seed.

    It is chosen on validation like everything else; the test classes only judge it. The mean over
    the seeds counts, which there is also for arms without anything to tune.
    """
    validation: dict[str, list[float]] = {arm: [] for arm in sorted(scores.scores)}
    folders = list_winners(context.sweep_folder / "winners")
    for winner in folders:
        score = _validation_score(winner)
        if winner.arm in validation and score is not None:
            validation[winner.arm].append(score)
    means = {arm: fmean(found) if found else 0.0 for arm, found in validation.items()}
    arm = max(means, key=lambda name: means[name])
    return context.sweep_folder / "winners" / f"{arm}-seed{min(scores.scores[arm])}"


def _validation_score(winner: WinnerFolder) -> float | None:
    return selected_score(read_epochs(winner.path), winner.load_config())


def _show_model(winner: Path, folder: Path) -> None:
    """Embeds the test images once and writes all that shows what the model makes of them."""
    from dml_core.evaluation.retrieval_grid import (
        draw_retrieval_grid,
        find_examples,
        save_retrieval_grid,
    )
    from dml_core.measures.embeddings import (
        make_embedding_map,
        write_embedding_map,
        write_embeddings,
    )
    from dml_core.measures.model_scores import embed_with_checkpoint
    from dml_core.training.checkpoint import load_checkpoint

    checkpoint = load_checkpoint(winner / "checkpoint.pt")
    images, info = open_test(checkpoint.config.data)
    embeddings = embed_with_checkpoint(checkpoint, images, content_hash=info.content_hash)
    metric = checkpoint.config.retrieval_metric
    found = find_examples(embeddings, images, metric=metric)
    grid = draw_retrieval_grid(images, found, title=winner.name)
    save_retrieval_grid(grid, folder / GRID_FILE)
    write_embeddings(embeddings, folder, metric=metric)
    drawn = make_embedding_map(embeddings, images, metric=metric)
    write_embedding_map(drawn, images, folder / MAP_FILE)
