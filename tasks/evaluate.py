"""Evaluates a study's winners on the test classes: the only reader of the test split."""

from dataclasses import replace
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
from tasks.machine_faults import clear_machine_faults, is_momentary
from tasks.step_progress import StepProgress, shown_step
from tasks.study import StudyContext, StudyRequest, load_context

GRID_FILE = "retrieval.png"
MAP_FILE = "embedding_map.csv"
FEW_IMAGES = 10_000
"""Below this number of images, over all evaluations, one process is faster than several."""


# No time-out: the time depends on images and winners, and a time-out would leave processes behind.
@task(retries=2, retry_delay_seconds=[2, 10], retry_condition_fn=is_momentary)
def evaluate_study(request: StudyRequest) -> Path:
    """Writes the evaluation of a study's winners, whole or not at all; running it twice is safe.

    It writes scores.json; for the best model the retrieval grid, the embeddings, an index and a
    map of them, and the scores by class; and measures.json where the study requests measures.
    """
    # Late: these load torch, and a run with nothing to do needs only `best_winner` from here.
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
        with shown_step(f"evaluating {request.folder_name}") as progress:
            try:
                return _evaluate(context, winners, progress)
            except DamagedCheckpoint:
                # Checked only now, so that intact checkpoints are not read twice.
                restore_winners(context)
                return _evaluate(context, winners, progress)


def _evaluate(context: StudyContext, winners: Path, progress: StepProgress) -> Path:
    from dml_core.measures.model_scores import evaluate_untrained, evaluate_winners
    from dml_core.measures.of_study import measure_study
    from tasks.versioning.winners import check_all_are_there

    check_all_are_there(context.sweep_folder)
    workers = _count_workers(list_winners(winners))
    if workers > 1:
        # Without the guardian, the processes of a pool outlive a killed process.
        guarded_folder()
    results = evaluate_winners(winners, workers=workers, on_progress=progress.count)
    scores = collect_scores(context.study.name, context.study.digest, results)
    configs = [winner.load_config() for winner in list_winners(winners)]
    images, _ = open_test(configs[0].data)
    progress.say("scores without training")
    scores = replace(scores, untrained=evaluate_untrained(configs, images))
    target = context.evaluate_folder
    with folder_lock(target), replaced_folder(target) as folder:
        progress.say("neighbours and map of the best model")
        _show_model(best_winner(context, scores), folder)
        progress.say("measures")
        measure_study(context.study.definition.measures, winners, folder)
        write_scores(scores, folder)
    return target / SCORES_FILE


def _count_workers(winners: list[WinnerFolder]) -> int:
    """Returns the number of cores, or 1 where starting processes takes longer than the work."""
    if not winners:
        return 1
    images, _ = open_test(winners[0].load_config().data)
    return count_cores() if len(winners) * len(images) >= FEW_IMAGES else 1


def best_winner(context: StudyContext, scores: StudyScores) -> Path:
    """Returns the folder of the model to ship: the arm best on validation, its first seed.

    It is selected on validation, like all else; the test classes only score it. The mean over the
    seeds decides, which also exists for arms without nuisance values.
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
    """Embeds the test images once; writes neighbours, embeddings, their map, scores by class."""
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
    from dml_core.training.checkpoint import load_checkpoint

    checkpoint = load_checkpoint(winner / "checkpoint.pt")
    images, info = open_test(checkpoint.config.data)
    embeddings = embed_with_checkpoint(checkpoint, images, content_hash=info.content_hash)
    metric = checkpoint.config.retrieval_metric
    found = find_examples(embeddings, images, metric=metric)
    grid = draw_retrieval_grid(images, found, title=winner.name)
    save_retrieval_grid(grid, folder / GRID_FILE)
    write_embeddings(embeddings, folder, metric=metric)
    write_classes(embeddings, images, folder, metric=metric)
    drawn = make_embedding_map(embeddings, images, metric=metric)
    write_embedding_map(drawn, images, folder / MAP_FILE)
