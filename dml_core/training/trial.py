"""Runs one training from the first epoch to the last, independent of Ray, MLflow and the CLI."""

from dataclasses import dataclass, field, replace

import numpy as np

from dml_core.config import TrialConfig
from dml_core.data.prepared import DevelopmentData
from dml_core.devices import runs_in_bfloat16
from dml_core.evaluation.clustering import smallest_class_distances
from dml_core.evaluation.evaluate import embed, evaluate_embeddings, measure_spread
from dml_core.training.checkpoint import Checkpoint
from dml_core.training.ddp import WorkerGroup, broadcast_state
from dml_core.training.determinism import limited_threads
from dml_core.training.epoch import Diverged, train_epoch
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


def run_trial(
    config: TrialConfig,
    data: DevelopmentData,
    *,
    on_epoch_end: EpochCallback,
    resume_from: Checkpoint | None = None,
    group: WorkerGroup | None = None,
) -> TrialResult:
    """Trains one model and returns how the training ended.

    Args:
        config: the resolved configuration of the trial.
        data: training and validation images; the test images are out of reach.
        on_epoch_end: receives the report and the checkpoint of each epoch; False stops the trial.
        resume_from: the checkpoint to resume from; the bits are those of an uninterrupted trial.
        group: this rank's view of the trial.workers processes, each of which calls this function;
            None for one worker. Only rank 0 validates and calls back.

    Returns:
        The result. A loss that is not finite and embeddings that are all alike are outcomes; they
        do not raise.
    """
    _check_world_size(config, group)
    reports: list[EpochReport] = []
    with limited_threads(config.training.cpu_threads):
        state = _start(config, data, resume_from, group)
        while state.epoch < config.training.epochs:
            if state.epoch == config.training.warmup_epochs > 0:
                _end_warmup(state)
            try:
                report = train_epoch(state)
            except Diverged as error:
                reason = _describe_divergence(state, error)
                return _make_result(state, reports, _End("diverged", reason, error.step))
            state.epoch += 1
            if group is not None and not group.is_rank_zero:
                end = _follow_rank_zero(state)
            else:
                end = _validate_and_report(state, data, report, reports, on_epoch_end)
            if end is not None:
                return _make_result(state, reports, end)
        return _make_result(state, reports, _End("finished"))


def _start(
    config: TrialConfig,
    data: DevelopmentData,
    resume_from: Checkpoint | None,
    group: WorkerGroup | None,
) -> TrialState:
    """Returns the state before the first epoch, or that of a checkpoint, equal on all ranks."""
    state = build_state(config, data, group=group)
    if resume_from is not None:
        restore_state(state, resume_from)
    if group is not None:
        group.barrier("built")
        broadcast_state(group, [*state.model.state_dict().values(), *state.loss.parameters()])
    return state


@dataclass(frozen=True)
class _End:
    """How a trial ended."""

    outcome: Outcome
    reason: str = ""
    step: int | None = None


def _validate_and_report(
    state: TrialState,
    data: DevelopmentData,
    report: EpochReport,
    reports: list[EpochReport],
    on_epoch_end: EpochCallback,
) -> _End | None:
    """Validates and reports an epoch; returns how the trial ended, or None if it continues."""
    validation = validate(state, data)
    report = replace(
        report,
        validation=validation.scores,
        tables=validation.tables,
        peak_memory_mib=measure_peak_memory_mib(state.device),
    )
    reports.append(report)
    end: _End | None = None
    if validation.has_collapsed:
        end = _End("collapsed", _describe_collapse(state, validation.spread))
    else:
        _keep_best(state, validation.scores)
        if on_epoch_end(report, take_checkpoint(state)) is False:
            end = _End("stopped", "stopped by its caller")
    if state.group is not None:
        state.group.set_number(f"epoch {state.epoch}", end is None)
    return end


def _follow_rank_zero(state: TrialState) -> _End | None:
    assert state.group is not None
    if state.group.wait_for_number(f"epoch {state.epoch}"):
        return None
    return _End("stopped", "stopped by rank 0")


TABLE_DECIMALS = 4
"""Tables are for display, and every epoch writes one."""


@dataclass(frozen=True)
class Validation:
    """Results of the validation after an epoch; empty in skipped epochs."""

    scores: dict[str, float] = field(default_factory=dict)
    tables: dict[str, list[list[float]]] = field(default_factory=dict)
    spread: float = float("inf")
    """Spread of the embeddings, relative to their length."""
    has_collapsed: bool = False
    """Whether the embeddings are all alike, or not even finite."""


def validate(state: TrialState, data: DevelopmentData) -> Validation:
    """Returns the scores and tables of the epoch, if training.validate_every includes it."""
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
        use_bfloat16=runs_in_bfloat16(config.training.precision, state.device),
    )


def _score(state: TrialState, data: DevelopmentData, embeddings: np.ndarray) -> dict[str, float]:
    config, continuous = state.config, data.validation.continuous
    # Clustering takes longer than an epoch of a small model, and no selection uses it.
    left_out = {"clustering": False, "binary": False, "match_rates": (), "truncate_at": ()}
    quick = config.evaluation.model_copy(update=left_out)
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


def _keep_best(state: TrialState, scores: dict[str, float]) -> None:
    score = scores.get(state.config.selection_metric)
    if score is None or not score > state.best_score:
        return
    state.best_score, state.best_epoch = score, state.epoch
    # Frozen blocks never change, so they are the same in every checkpoint.
    state.best_model = {
        name: value.detach().clone() for name, value in state.model.learned_state().items()
    }


def _make_result(state: TrialState, reports: list[EpochReport], end: _End) -> TrialResult:
    return TrialResult(
        outcome=end.outcome,
        reason=end.reason,
        epoch=state.epoch,
        step=end.step,
        best_epoch=state.best_epoch,
        best_score=state.best_score,
        reports=reports,
    )


def _describe_divergence(state: TrialState, error: Diverged) -> str:
    rates = get_learning_rates(state.optimizer)
    listed = ", ".join(f"{part} {rate:.3g}" for part, rate in rates.items())
    return (
        f"loss is {error.loss} at epoch {state.epoch + 1}, step {error.step} "
        f"(learning rates: {listed}). The last good state is that after epoch {state.epoch}. "
        "Lower optimizer.learning_rate, or clip with training.gradient_clip."
    )


def _describe_collapse(state: TrialState, spread: float) -> str:
    return (
        f"embeddings collapsed after epoch {state.epoch}: their spread is {spread:.3g} of their "
        f"length, below training.collapse_below={state.config.training.collapse_below:g}. "
        f"The last good state is that after epoch {state.epoch - 1}. "
        "Lower optimizer.learning_rate, or choose an easier mining."
    )
