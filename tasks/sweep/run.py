"""Runs the sweep of a study on Ray: the search of all arms, then the winners over the seeds."""

import importlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dml_core.config.loading import to_flat_dict
from dml_core.config.pipeline import PipelineConfig
from dml_core.data.atomic_folder import folder_lock, replaced_folder
from dml_core.studies.extension import extend_search
from dml_core.studies.own_code_checks import hash_own_code
from dml_core.studies.resolved import ResolvedStudy
from dml_core.training.errors import DamagedCheckpoint
from dml_core.trials.halving import SuccessiveHalving
from dml_core.trials.journal import EPOCHS_FILE, Journal, describe_mixed_devices, read_device
from dml_core.trials.key import add_own_code, hash_training_code, read_libraries
from dml_core.trials.ledger import Ledger, hold_folder
from dml_core.trials.spec import TrialRecord, TrialSpec, spec_to_plain
from dml_core.trials.store import TrialStore, open_store
from dml_core.trials.table import write_trials
from dml_core.trials.winners import Winner, choose_winners
from tasks.budget import SweepLimit
from tasks.sweep.aside import done_aside
from tasks.sweep.cluster import connect, count_concurrent
from tasks.sweep.conductor import (
    Conductor,
    ListedTrials,
    SearchThenRepeats,
    SweepEvents,
    TrialSource,
    refill_rungs,
)
from tasks.sweep.job import TrialJob
from tasks.sweep.node_data import describe_data, open_ledger, remember_sources
from tasks.sweep.nodes import need_of
from tasks.sweep.progress import ProgressTracker, SweepProgress

LOGGER = logging.getLogger(__name__)

TUNE_FOLDER = "tune"


class TooManyFailures(ValueError):
    """More trials failed than sweep.max_failed_fraction allows; all journals are kept."""


@dataclass(frozen=True)
class SweepResult:
    """Everything that a sweep found out."""

    search_records: list[TrialRecord]
    winners: dict[str, Winner]
    repeat_records: list[TrialRecord]
    folder: Path
    """Where trials.parquet and the winners are."""
    num_shared: int = 0
    """Trials that were not trained here, since another study had trained the same key."""


def _ignore(*_: Any) -> None:
    """Does nothing."""


def run_sweep(
    study: ResolvedStudy,
    pipeline: PipelineConfig,
    *,
    folder: Path,
    output: Path | None = None,
    store: TrialStore | None = None,
    on_begin: Callable[[], Any] = _ignore,
    on_update: Callable[[SweepProgress], None] = _ignore,
    on_trial_start: Callable[[TrialSpec], None] = _ignore,
    on_epoch: Callable[[TrialSpec, Mapping[str, Any]], None] = _ignore,
    on_trial_end: Callable[[TrialRecord], None] = _ignore,
    seconds: float | None = None,
) -> SweepResult:
    """Searches every arm with the same budget, repeats the winners, and writes the result.

    Called again after any interruption it resumes: trials that have ended are not run again.

    Args:
        study: the question.
        pipeline: where and within which limits it runs.
        folder: the study's working folder, `results/.sweeps/<study>`.
        output: folder of the result; by default `results/<study>/sweep` beside it.
        store: the journals of all studies, which every node reaches; by default that of
            sweep.storage, or the folder `results/.trials`.
        on_begin: called in a thread, once no other process can work in the folder; it is done
            before any trial runs here, while the cluster starts.
        on_update: receives the progress after each change.
        on_trial_start: receives each trial's spec. This and the next two are called on the driver,
            again from the start for trials of an earlier process.
        on_epoch: receives each epoch's report.
        on_trial_end: receives each trial's record.
        seconds: how long it may take until its last trial ends; None sets no limit.

    Raises:
        BudgetSpent: when that time is over before.
        SweepIsRunning: when another process works in the folder.
        BucketInUse: when another driver works in the bucket of sweep.storage.
        RayUnreachable: when there is no cluster.
        TooManyFailures: when more trials failed than allowed.
    """
    folder = folder.resolve()
    output = output or folder.parent.parent / folder.name / "sweep"
    if store is None:
        store = open_store(pipeline.sweep.storage or str(folder.parent.parent / ".trials"))
    events = SweepEvents(on_update, on_trial_start, on_epoch, on_trial_end)
    with hold_folder(folder), store.hold(), done_aside(on_begin, _load_torch) as wait_for_begin:
        ledger = open_ledger(folder, pipeline.ray, store=store)
        tracker = ProgressTracker(study.name, total=count_trials(study))
        limit = SweepLimit(seconds, tracker.count)
        conductor = _make_conductor(study, pipeline, ledger, tracker, events)
        # Without a trial to run, no cluster is needed.
        if conductor.has_next():
            limit.check()
            from tasks.sweep.tune import run_tune_job

            trials_of_arms = [study.arm_config(arm.name).trial for arm in study.arms]
            needs = list({need_of(pipeline.ray, trial): None for trial in trials_of_arms})
            with connect(pipeline.ray, workers=max(trial.workers for trial in trials_of_arms)):
                wait_for_begin()
                tracker.num_concurrent = count_concurrent(pipeline.ray, needs)
                _compute_frozen_trunks(study, pipeline)
                run_tune_job(
                    conductor,
                    pipeline,
                    folder=folder / TUNE_FOLDER,
                    make_job=_make_job_maker(conductor, pipeline, ledger),
                    needs=needs,
                    check_held=store.check_held,
                    check_budget=limit.check,
                )
        store.check_held()
        _check_failures(study, pipeline, ledger, conductor)
        result = _collect(study, ledger, list(conductor.records.values()), output)
        write_sweep(study, result, ledger.store, versions=_versions(study))
        ledger.remove_superseded()
    return result


def _load_torch() -> None:
    """Loads what the winners' checkpoints need, so that the trials do not wait for it."""
    importlib.import_module("dml_core.training.checkpoint")


def _make_conductor(
    study: ResolvedStudy,
    pipeline: PipelineConfig,
    ledger: Ledger,
    tracker: ProgressTracker,
    events: SweepEvents,
) -> Conductor:
    for line in ledger.describe_stale():
        LOGGER.warning("%s: %s", study.name, line)
    _retry_failures(ledger)

    def extend(records: Sequence[TrialRecord]) -> list[TrialSpec]:
        specs = extend_search(study, records)
        tracker.total += len(specs)
        return specs

    source = SearchThenRepeats(
        _search(study, ledger),
        lambda found: _make_repeats(study, found),
        extend=extend,
        max_rounds=study.definition.edge_rounds,
    )
    return Conductor(
        source,
        ledger,
        tracker=tracker,
        events=events,
        halving=_make_halving(study, ledger),
        max_failed=_count_allowed_failures(study, pipeline),
        max_restarts=pipeline.sweep.max_restarts,
    )


def count_trials(study: ResolvedStudy) -> int:
    """Returns how many trials a sweep has, without tries beyond the ranges of its search."""
    num_searched = len(study.searched_arms) * study.trials_per_arm * study.folds
    return num_searched + study.num_repeats


def _search(study: ResolvedStudy, ledger: Ledger) -> TrialSource:
    if study.searcher != "tpe":
        return ListedTrials(study.search_specs())
    from tasks.sweep.tpe import TpeTrials

    return TpeTrials(study, ledger.known_specs())


def _make_halving(study: ResolvedStudy, ledger: Ledger) -> SuccessiveHalving | None:
    if study.scheduler.name != "asha":
        return None
    halving = SuccessiveHalving(
        grace_epochs=study.scheduler.grace_epochs,
        reduction_factor=study.scheduler.reduction_factor,
    )
    refill_rungs(halving, ledger)
    return halving


def _make_repeats(study: ResolvedStudy, records: Sequence[TrialRecord]) -> list[TrialSpec]:
    winners = choose_winners(study, records)
    values = {arm: winner.values for arm, winner in winners.items() if winner.values is not None}
    return study.repeat_specs(values)


def _compute_frozen_trunks(study: ResolvedStudy, pipeline: PipelineConfig) -> None:
    configs = [study.arm_config(arm.name) for arm in study.arms]
    if any(config.trunk.keeps_activations for config in configs):
        from tasks.sweep.cached_activations import compute_activations

        compute_activations(configs, pipeline)


def _make_job_maker(
    conductor: Conductor, pipeline: PipelineConfig, ledger: Ledger
) -> Callable[[TrialSpec], TrialJob]:
    """Returns the function that makes the job of a trial for its worker."""
    working_folder, find_source = str(Path.cwd()), remember_sources(pipeline.data_access)
    tune_folder = ledger.folder / TUNE_FOLDER

    def make_job(spec: TrialSpec) -> TrialJob:
        ledger.store.hand_out(ledger.key(spec))
        return TrialJob(
            spec=spec_to_plain(spec),
            key=ledger.key(spec),
            store=ledger.store.location,
            note=str(tune_folder / f"hung-{spec.trial_id}.txt"),
            working_folder=working_folder,
            data_version=ledger.data_version(spec),
            data_source=find_source(spec.config),
            timeout_seconds=pipeline.sweep.trial_timeout_seconds,
            is_judged=conductor.judges(spec),
            code=add_own_code(ledger.code, spec.config),
            libraries=ledger.libraries,
        )

    return make_job


def _collect(
    study: ResolvedStudy, ledger: Ledger, records: list[TrialRecord], output: Path
) -> SweepResult:
    """Returns the records by phase, in the order of the study, with the winners."""
    devices = (read_device(ledger.journal(record.spec).epochs()) for record in records)
    if line := describe_mixed_devices(devices):
        LOGGER.warning("%s: %s", study.name, line)
    places = {arm.name: place for place, arm in enumerate(study.arms)}

    def place(record: TrialRecord) -> tuple[int, int, int]:
        return record.spec.number, places[record.spec.arm], record.spec.config.data.fold

    searched = sorted((r for r in records if r.spec.phase == "search"), key=place)
    repeated = sorted((r for r in records if r.spec.phase == "repeat"), key=place)
    num_shared = sum(ledger.is_shared(record.spec) for record in records)
    return SweepResult(searched, choose_winners(study, searched), repeated, output, num_shared)


def _retry_failures(ledger: Ledger) -> None:
    """Runs failed trials again if they had stopped the sweep: the cause was fixed meanwhile."""
    if ledger.was_stopped:
        ledger.retry_failures()


def _versions(study: ResolvedStudy) -> dict[str, Any]:
    """Returns the versions that the results depend on beside the study."""
    configs = [study.arm_config(arm.name) for arm in study.arms]
    data = sorted({describe_data(config) for config in configs})
    own = {"own_code": found} if (found := hash_own_code(study)) else {}
    return {"code": hash_training_code(), **own, "data": data, "libraries": read_libraries()}


def _count_allowed_failures(study: ResolvedStudy, pipeline: PipelineConfig) -> int:
    return int(pipeline.sweep.max_failed_fraction * count_trials(study))


def _check_failures(
    study: ResolvedStudy, pipeline: PipelineConfig, ledger: Ledger, conductor: Conductor
) -> None:
    """Raises TooManyFailures if failed trials stopped the sweep."""
    if not conductor.has_too_many_failures:
        return
    ledger.stop()
    failures, max_failed = conductor.failures, _count_allowed_failures(study, pipeline)
    reasons = list(dict.fromkeys(record.reason for record in failures))[:3]
    listed = "".join(f"\n  - {reason}" for reason in reasons)
    results = f"{ledger.store.location}/{failures[0].key}/result.json"
    raise TooManyFailures(
        f"study {study.name} was stopped: {len(failures)} trials failed, and "
        f"sweep.max_failed_fraction allows {max_failed}, since more point to a mistake that every "
        f"trial makes. The first reasons:{listed}\nFix the cause and run the same command again: "
        "finished trials are kept, failed ones run again. A trial that raised has its traceback in "
        f"its result.json, such as {results}"
    )


def write_sweep(
    study: ResolvedStudy, result: SweepResult, store: TrialStore, *, versions: Mapping[str, Any]
) -> None:
    """Writes a sweep's folder atomically; an older one stays until then.

    It gets trials.parquet, winners.json (by arm), sweep.json (what the sweep was made of) and
    `winners/<arm>-seed<k>/` with checkpoint.pt, epochs.jsonl and config.json.
    """
    with folder_lock(result.folder), replaced_folder(result.folder) as partial:
        write_trials([*result.search_records, *result.repeat_records], partial / "trials.parquet")
        winners = {arm: asdict(winner) for arm, winner in result.winners.items()}
        _write_json(partial / "winners.json", winners)
        _write_json(partial / "sweep.json", _describe_sweep(study, result, versions))
        (partial / "winners").mkdir()
        for record in result.repeat_records:
            if record.status == "finished":
                _copy_winner(record, Journal(store, record.key), partial / "winners")


def _describe_sweep(
    study: ResolvedStudy, result: SweepResult, versions: Mapping[str, Any]
) -> dict[str, Any]:
    is_ordered = study.searcher == "tpe" or study.scheduler.name == "asha"
    return {
        "study": study.name,
        "digest": study.digest,
        "searcher": study.searcher,
        "scheduler": study.scheduler.name,
        "order_matters": is_ordered,
        "shared_trials": result.num_shared,
        "note": (
            "tpe and asha decide by the trials that have ended so far: another order of the same "
            "trials may lead to another choice."
            if is_ordered
            else "every run of this sweep makes the same trials with the same results."
        ),
        **versions,
    }


def _copy_winner(record: TrialRecord, journal: Journal, winners: Path) -> None:
    # Late: these import torch, which takes longer than all else before the first trial.
    from dml_core.training.checkpoint import save_checkpoint
    from dml_core.training.kept import open_checkpoints

    spec = record.spec
    target = winners / f"{spec.arm}-seed{spec.config.seed}"
    target.mkdir()
    try:
        # No earlier one will do: the winner's scores are those of the last checkpoint.
        checkpoint = open_checkpoints(journal).load(record.epochs)
    except (DamagedCheckpoint, FileNotFoundError) as error:
        raise ValueError(
            f"trial {spec.trial_id} finished, but its last checkpoint was lost: {error} Run the "
            "same command again, which trains its last epochs again from the checkpoint before."
        ) from error
    # A node may have read its data elsewhere; the winner names the study's own paths.
    save_checkpoint(replace(checkpoint, config=spec.config), target / "checkpoint.pt")
    epochs = journal.store.read(journal.key, EPOCHS_FILE) or ""
    (target / EPOCHS_FILE).write_text(epochs, encoding="utf-8")
    _write_json(target / "config.json", to_flat_dict(spec.config))


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
