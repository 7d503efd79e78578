"""Runs the sweep of a study on Ray: the search of all arms, then the winners over the seeds."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dml_core.config.pipeline import PipelineConfig
from dml_core.studies.resolved import ResolvedStudy
from dml_core.trials.halving import SuccessiveHalving
from dml_core.trials.journal import Ledger, say_mixed_devices
from dml_core.trials.key import hash_training_code, read_libraries
from dml_core.trials.spec import TrialRecord, TrialSpec, spec_to_plain
from dml_core.trials.winners import choose_winners
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
from tasks.sweep.lock import hold_folder
from tasks.sweep.node_data import describe_data, open_ledger, remember_sources
from tasks.sweep.output import SweepResult, write_sweep
from tasks.sweep.progress import ProgressTracker, SweepProgress
from tasks.sweep.shared_trials import TrialPool, read_origin

__all__ = ["SweepResult", "TooManyFailures", "run_sweep"]


LOGGER = logging.getLogger(__name__)

STOPPED_FILE = "stopped-by-failures"
"""Says in a working folder that its last sweep was stopped by failed trials."""


class TooManyFailures(ValueError):
    """More trials failed than sweep.max_failed_fraction allows; the ledger is kept."""


def _ignore(*_: Any) -> None:
    """Does nothing."""


def run_sweep(
    study: ResolvedStudy,
    pipeline: PipelineConfig,
    *,
    folder: Path,
    output: Path | None = None,
    sweeps: Path | None = None,
    on_begin: Callable[[], Any] = _ignore,
    on_update: Callable[[SweepProgress], None] = _ignore,
    on_trial_start: Callable[[TrialSpec], None] = _ignore,
    on_epoch: Callable[[TrialSpec, Mapping[str, Any]], None] = _ignore,
    on_trial_end: Callable[[TrialRecord], None] = _ignore,
) -> SweepResult:
    """Searches every arm with the same budget, repeats the winners, and writes the result.

    Called again after any interruption it goes on where it stopped: what ended is not run again.

    Args:
        study: the question.
        pipeline: where and within which limits it runs.
        folder: the working folder, `results/.sweeps/<study>`; every node must see it.
        output: what the sweep leaves; by default `results/<study>/sweep` beside it.
        sweeps: holds the working folders of all studies; a trial that ended in one of them with the
            same configuration, code and data is taken over. None trains all.
        on_begin: called first, once no other process can work in the folder.
        on_update: gets the progress after each change.
        on_trial_start: gets each trial's spec. This and the next two are called on the driver,
            again from the start for trials of an earlier process.
        on_epoch: gets each epoch's report.
        on_trial_end: gets each trial's record.

    Raises:
        SweepIsRunning: when another process works in the folder.
        RayUnreachable: when there is no cluster.
        TooManyFailures: when more trials failed than allowed.
    """
    folder = folder.resolve()
    output = output or folder.parent.parent / folder.name / "sweep"
    events = SweepEvents(on_update, on_trial_start, on_epoch, on_trial_end)
    with hold_folder(folder):
        on_begin()
        result = _run(study, pipeline, folder, output, sweeps, events)
        write_sweep(study, result, working_folder=folder, versions=_versions(study))
    return result


def _run(
    study: ResolvedStudy,
    pipeline: PipelineConfig,
    folder: Path,
    output: Path,
    sweeps: Path | None,
    events: SweepEvents,
) -> SweepResult:
    ledger = open_ledger(folder, pipeline.ray)
    for line in ledger.say_outdated():
        LOGGER.warning("%s: %s", study.name, line)
    total = count_trials(study)
    max_failed = int(pipeline.sweep.max_failed_fraction * total)
    _forget_failures(ledger)
    tracker = ProgressTracker(study.name, total=total)
    conductor = Conductor(
        SearchThenRepeats(_search(study, ledger), lambda found: _make_repeats(study, found)),
        ledger,
        tracker=tracker,
        events=events,
        halving=_make_halving(study, ledger),
        pool=TrialPool(ledger, sweeps),
        max_failed=max_failed,
    )
    # Nothing to run means no cluster to wait for.
    if conductor.has_next():
        workers = max(study.arm_config(arm.name).trial.workers for arm in study.arms)
        with connect(pipeline.ray, workers=workers):
            tracker.num_concurrent = count_concurrent(pipeline.ray, workers=workers)
            _compute_frozen_trunks(study, pipeline)
            _run_on_cluster(conductor, pipeline, ledger, workers)
    if conductor.has_too_many_failures:
        (folder / STOPPED_FILE).touch()
        raise TooManyFailures(_say_failures(study, conductor.failures, max_failed))
    records = list(conductor.records.values())
    if line := say_mixed_devices(folder / record.folder for record in records):
        LOGGER.warning("%s: %s", study.name, line)
    num_shared = sum(_is_shared(record, folder) for record in records)
    return replace(_collect(study, records, output), num_shared=num_shared)


def count_trials(study: ResolvedStudy) -> int:
    """Returns how many trials a sweep has, search and repeats together."""
    num_searched = len(study.searched_arms) * study.trials_per_arm * study.folds
    return num_searched + len(study.arms) * len(study.seeds)


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


def _run_on_cluster(
    conductor: Conductor, pipeline: PipelineConfig, ledger: Ledger, workers: int
) -> None:
    from tasks.sweep.tune import run_tune_job

    working_folder, find_source = str(Path.cwd()), remember_sources(pipeline.data_access)

    def make_job(spec: TrialSpec) -> TrialJob:
        return TrialJob(
            spec=spec_to_plain(spec),
            folder=str(ledger.trial_folder(spec)),
            working_folder=working_folder,
            data_version=ledger.data_version(spec),
            data_source=find_source(spec.config),
            timeout_seconds=pipeline.sweep.trial_timeout_seconds,
            is_judged=conductor.judges(spec),
            code=ledger.code,
            libraries=ledger.libraries,
        )

    run_tune_job(
        conductor,
        pipeline,
        folder=ledger.folder / "tune",
        make_job=make_job,
        workers=workers,
    )


def _collect(study: ResolvedStudy, records: list[TrialRecord], output: Path) -> SweepResult:
    places = {arm.name: place for place, arm in enumerate(study.arms)}

    def place(record: TrialRecord) -> tuple[int, int, int]:
        return record.spec.number, places[record.spec.arm], record.spec.config.data.fold

    searched = sorted((r for r in records if r.spec.phase == "search"), key=place)
    repeated = sorted((r for r in records if r.spec.phase == "repeat"), key=place)
    return SweepResult(searched, choose_winners(study, searched), repeated, output)


def _is_shared(record: TrialRecord, folder: Path) -> bool:
    origin = read_origin(folder / record.folder)
    return origin is not None and origin.study != folder.name


def _forget_failures(ledger: Ledger) -> None:
    """Lets failed trials run again where they had stopped the sweep: something was mended."""
    marker = ledger.folder / STOPPED_FILE
    if not marker.exists():
        return
    for spec in list(ledger.known_specs()):
        record = ledger.find(spec)
        if record is not None and record.status == "failed":
            ledger.forget(spec)
    marker.unlink()


def _versions(study: ResolvedStudy) -> dict[str, Any]:
    """Returns what else than the study the results depend on."""
    configs = [study.arm_config(arm.name) for arm in study.arms]
    data = sorted({describe_data(config) for config in configs})
    return {"code": hash_training_code(), "data": data, "libraries": read_libraries()}


def _say_failures(study: ResolvedStudy, failures: Sequence[TrialRecord], max_failed: int) -> str:
    reasons = list(dict.fromkeys(record.reason for record in failures))[:3]
    listed = "".join(f"\n  - {reason}" for reason in reasons)
    return (
        f"study {study.name} was stopped: {len(failures)} trials failed, and "
        f"sweep.max_failed_fraction allows {max_failed}, since more point to a mistake that every "
        f"trial makes. The first reasons:{listed}\nMend that and run the same command again: "
        "finished trials are kept, failed ones run again. Each trial's failure.txt tells more."
    )
