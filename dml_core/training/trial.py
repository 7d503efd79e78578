"""Runs one training from the first epoch to the last, knowing nothing of its surroundings."""

from dataclasses import dataclass, field

import numpy as np

from dml_core.config import TrialConfig
from dml_core.data.prepared import DevelopmentData
from dml_core.evaluation.class_distances import smallest_class_distances
from dml_core.evaluation.embed import embed, measure_spread
from dml_core.evaluation.evaluate import evaluate_embeddings
from dml_core.training.checkpoint import Checkpoint
from dml_core.training.ddp import WorkerGroup, broadcast_state
from dml_core.training.determinism import limited_threads
from dml_core.training.epoch import EpochNumbers, train_epoch
from dml_core.training.optimizers import get_learning_rates
from dml_core.training.report import (
    EpochCallback,
    EpochReport,
    Outcome,
    TrialResult,
    measure_peak_memory_mib,
)
from dml_core.training.state import (
    TrialState,
    build_state,
    build_trial_optimizer,
    restore_state,
    take_checkpoint,
)

TABLE_DECIMALS = 4
"""Tables are looked at, not computed with, and every epoch has one on disk."""


@dataclass(frozen=True)
class Validation:
    """What the validation after an epoch found; nothing in skipped epochs."""

    scores: dict[str, float] = field(default_factory=dict)
    tables: dict[str, list[list[float]]] = field(default_factory=dict)
    spread: float = float("inf")
    """How far the embeddings lie apart, relative to their length."""
    has_collapsed: bool = False
    """Whether the embeddings are all alike, or not even finite."""


def validate(state: TrialState, data: DevelopmentData) -> Validation:
    """Returns the scores and tables of the state's epoch, where it is one to validate after."""
    training = state.config.training
    if state.epoch % training.validate_every and state.epoch != training.epochs:
        return Validation()
    embeddings = _embed(state)
    spread = measure_spread(embeddings)
    # Written so that NaN counts as collapsed.
    if not spread >= training.collapse_below:
        return Validation(spread=spread, has_collapsed=True)
    scores = _score(state, data, embeddings)
    return Validation(scores, _make_tables(state, data, embeddings), spread)


def _embed(state: TrialState) -> np.ndarray:
    config = state.config
    state.model.set_training(False, freeze_batch_norm=True)
    return embed(
        state.network,
        state.validation_inputs,
        batch_size=config.evaluation.batch_size,
        device=state.device,
        workers=state.loader_workers,
        use_bfloat16=config.training.precision == "bfloat16",
    )


def _score(state: TrialState, data: DevelopmentData, embeddings: np.ndarray) -> dict[str, float]:
    config, continuous = state.config, data.validation.continuous
    # Clustering costs more than an epoch of a small model and chooses nothing.
    quick = config.evaluation.model_copy(update={"clustering": False, "binary": False})
    return evaluate_embeddings(
        embeddings,
        data.validation.labels,
        config=quick,
        metric=config.retrieval_metric,
        roles=None,
        continuous=continuous / state.targets.label_scale if continuous.shape[1] else None,
        seed=config.seed,
    )


def _make_tables(
    state: TrialState, data: DevelopmentData, embeddings: np.ndarray
) -> dict[str, list[list[float]]]:
    config = state.config
    if not config.evaluation.class_distances:
        return {}
    distances = smallest_class_distances(
        embeddings,
        data.validation.labels,
        max_classes=config.evaluation.class_distances,
        metric=config.retrieval_metric,
        block_size=config.evaluation.block_size,
    )
    return {"hardest_distances": distances.round(TABLE_DECIMALS).tolist()}


def run_trial(
    config: TrialConfig,
    data: DevelopmentData,
    *,
    on_epoch_end: EpochCallback,
    resume_from: Checkpoint | None = None,
    group: WorkerGroup | None = None,
) -> TrialResult:
    """Trains one model and returns how that ended.

    Args:
        config: everything the trial is made of.
        data: training and validation images; the test images are not within reach.
        on_epoch_end: gets the report and the state after each epoch; False stops the trial.
        resume_from: the state to go on from; the result has the same bits as without a stop.
        group: this rank's view of the trial.workers processes, each of which calls this function;
            None for one worker. Only rank 0 validates and calls back.

    Returns:
        The outcome. A loss that is not finite and embeddings that are all alike end the trial
        with that outcome; they do not raise.
    """
    _check_world_size(config, group)
    with limited_threads(config.training.cpu_threads):
        state = build_state(config, data, group=group)
        if resume_from is not None:
            restore_state(state, resume_from)
        if group is not None:
            group.barrier("built")
            broadcast_state(group, [*state.model.state_dict().values(), *state.loss.parameters()])
        return _train(state, data, on_epoch_end)


def _train(state: TrialState, data: DevelopmentData, on_epoch_end: EpochCallback) -> TrialResult:
    config, reports = state.config, list[EpochReport]()
    while state.epoch < config.training.epochs:
        if state.epoch == config.training.warmup_epochs > 0:
            _end_warmup(state)
        numbers = train_epoch(state)
        if numbers.diverged_at is not None:
            return _end(state, reports, "diverged", _say_divergence(state, numbers), numbers)
        state.epoch += 1
        if state.group is not None and not state.group.is_rank_zero:
            if not state.group.wait_for_number(f"epoch {state.epoch}"):
                return _end(state, reports, "stopped", "stopped by rank 0", numbers)
            continue
        ended = _judge_epoch(state, data, numbers, reports, on_epoch_end)
        if state.group is not None:
            state.group.set_number(f"epoch {state.epoch}", ended is None)
        if ended is not None:
            return ended
    return _end(state, reports, "finished", "", None)


def _judge_epoch(
    state: TrialState,
    data: DevelopmentData,
    numbers: EpochNumbers,
    reports: list[EpochReport],
    on_epoch_end: EpochCallback,
) -> TrialResult | None:
    """Validates and reports an epoch; returns how the trial ended, or None where it goes on."""
    validation = validate(state, data)
    report = _make_report(state, numbers, validation)
    reports.append(report)
    if validation.has_collapsed:
        reason = _say_collapse(state, validation.spread)
        return _end(state, reports, "collapsed", reason, numbers)
    _remember_best(state, validation.scores)
    if on_epoch_end(report, take_checkpoint(state)) is False:
        return _end(state, reports, "stopped", "stopped by its caller", numbers)
    return None


def _check_world_size(config: TrialConfig, group: WorkerGroup | None) -> None:
    world_size = 1 if group is None else group.world_size
    if world_size != config.trial.workers:
        raise ValueError(
            f"a trial with trial.workers={config.trial.workers} must be trained by as many "
            f"processes. Got {world_size}. Train it with dml train or dml run, or set "
            "trial.workers to 1."
        )


def _end_warmup(state: TrialState) -> None:
    if state.config.training.new_optimizer_after_warmup:
        state.optimizer = build_trial_optimizer(
            state.config, model=state.model, loss=state.loss, device=state.device
        )


def _remember_best(state: TrialState, scores: dict[str, float]) -> None:
    score = scores.get(state.config.selection_metric)
    if score is None or not score > state.best_score:
        return
    state.best_score, state.best_epoch = score, state.epoch
    # Frozen stages never move, so the best epoch's are those of every checkpoint.
    state.best_model = {
        name: value.detach().clone() for name, value in state.model.learned_state().items()
    }


def _make_report(state: TrialState, numbers: EpochNumbers, validation: Validation) -> EpochReport:
    diagnostics = numbers.mean_diagnostics()
    return EpochReport(
        epoch=state.epoch,
        num_epochs=state.config.training.epochs,
        train_loss=numbers.mean_loss(),
        active_fraction=diagnostics.pop("active_fraction", None),
        diagnostics=diagnostics,
        learning_rates=get_learning_rates(state.optimizer),
        images_per_second=numbers.num_images / max(numbers.seconds, 1e-9),
        train_seconds=numbers.seconds,
        peak_memory_mib=measure_peak_memory_mib(state.device),
        validation=validation.scores,
        tables=validation.tables,
    )


def _end(
    state: TrialState,
    reports: list[EpochReport],
    outcome: Outcome,
    reason: str,
    numbers: EpochNumbers | None,
) -> TrialResult:
    return TrialResult(
        outcome=outcome,
        reason=reason,
        epoch=state.epoch,
        step=numbers.diverged_at if numbers else None,
        best_epoch=state.best_epoch,
        best_score=state.best_score,
        reports=reports,
    )


def _say_divergence(state: TrialState, numbers: EpochNumbers) -> str:
    loss = float(numbers.losses[numbers.diverged_at or 0])
    rates = get_learning_rates(state.optimizer)
    listed = ", ".join(f"{part} {rate:.3g}" for part, rate in rates.items())
    return (
        f"loss is {loss} at epoch {state.epoch + 1}, step {numbers.diverged_at} "
        f"(learning rates: {listed}). The last good state is that after epoch {state.epoch}. "
        "Lower optimizer.learning_rate, or clip with training.gradient_clip."
    )


def _say_collapse(state: TrialState, spread: float) -> str:
    return (
        f"embeddings collapsed after epoch {state.epoch}: their spread is {spread:.3g} of their "
        f"length, below training.collapse_below={state.config.training.collapse_below:g}. "
        f"The last good state is that after epoch {state.epoch - 1}. "
        "Lower optimizer.learning_rate, or choose an easier mining."
    )
