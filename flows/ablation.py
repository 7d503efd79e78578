"""The flows: prepare, sweep, evaluate, report, and all four in a row for each study."""

import importlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from prefect import flow, get_run_logger, tags
from prefect.runtime import deployment, flow_run

from dml_core.config.data import DataBase, DownloadedData
from dml_core.data.records import DatasetError
from dml_core.trials.ledger import check_is_free
from flows.servers.connect import outlive_server
from flows.servers.pages import FLOW_NAME, tag_of, tag_run
from flows.servers.record import note_run
from tasks.artifacts import show_answer, show_datasets, show_run, show_scores, show_sweep
from tasks.budget import MOST_SEEDS, BudgetSpent, SeedBudget
from tasks.evaluate import evaluate_study
from tasks.looks import add_seeds, plan_looks, take_back_seeds
from tasks.prepare import prepare_data
from tasks.report import Answer, read_answer, write_report
from tasks.report_page.tables import describe_commit
from tasks.run_log import RunLog, logged_run
from tasks.secrets import redact_logs
from tasks.sources import is_pinned, pin_sources
from tasks.study import (
    STUDIES_FOLDER,
    StudyContext,
    StudyRequest,
    is_prepared,
    load_context,
    load_project,
    timed_stage,
)
from tasks.sweep.cluster import kept_cluster
from tasks.sweep.task import sweep_study
from tasks.tracking.evaluation import record_evaluation, record_report, restore_sweep_record
from tasks.versioning.installed_code import refresh_code
from tasks.versioning.stages import (
    PinnedRun,
    begin_stage,
    hold_stage,
    is_versioned,
    pin_look,
    pin_run,
    track_activations,
    track_study,
)
from tasks.versioning.tasks import commit_stage, is_stale
from tasks.watch import check_for_drops, notify_of_failure, watch_result


@flow(name="prepare", flow_run_name="{request.folder_name}")
def prepare(request: StudyRequest) -> list[dict[str, Any]]:
    """Packs, splits and hashes the project's dataset, or the datasets of a changed study."""
    prepared = [_prepare_named(request, data) for data in _choose_datasets(request)]
    show_datasets(request, prepared)
    return prepared


@flow(name="sweep", flow_run_name="{request.folder_name}")
def sweep(request: StudyRequest, show: str = "auto", seconds: float | None = None) -> Path:
    """Tunes every arm with the same budget and repeats the winners over seeds; resumes.

    Args:
        request: the study.
        show: how progress is shown.
        seconds: when it stops, so that the same command resumes it; None sets no limit.
    """
    context = load_context(request)
    for data in context.datasets:
        if not is_prepared(data) or _may_have_changed(context, data):
            _prepare_named(request, data)
    with timed_stage(context, "sweep"):
        folder = sweep_study(request, show, seconds)
    track_activations(request)
    show_sweep(request, folder)
    return folder


@flow(name="evaluate", flow_run_name="{request.folder_name}")
def evaluate(request: StudyRequest) -> Path:
    """Evaluates the winners of a study on the test classes."""
    with timed_stage(load_context(request), "evaluate"):
        scores = evaluate_study(request)
    track_activations(request)
    show_scores(request, scores)
    return scores


@flow(name="report", flow_run_name="{request.folder_name}")
def report(request: StudyRequest) -> Answer:
    """Writes the report of a study and returns its answer."""
    compare_url = record_evaluation(request)
    answer = write_report(request, compare_url)
    record_report(request)
    show_answer(request, answer)
    return answer


STAGES: dict[str, Callable[[StudyRequest], Any]] = {
    "prepare": prepare,
    "sweep": sweep,
    "evaluate": evaluate,
    "report": report,
}
"""The flow of each stage, in order."""


def name_run() -> str:
    """Returns the name of a run in Prefect: its studies, with their profile."""
    given = flow_run.parameters
    return ", ".join(request.folder_name for request in _list_requests(given))


def _list_requests(given: Mapping[str, Any]) -> list[StudyRequest]:
    """Returns the studies that the parameters of `ablation` name."""
    return [
        StudyRequest(
            study=name,
            profile=given.get("profile"),
            params=given.get("params") or "params.yaml",
            overrides=tuple(given.get("overrides") or ()),
        )
        for name in given.get("studies") or ()
    ]


# No timeout here or on a stage: a study takes minutes or days. sweep.timeout_seconds limits the
# sweep, which then stops so that the next run resumes it.
@flow(
    name=FLOW_NAME,
    flow_run_name=name_run,
    on_failure=[notify_of_failure],
    on_crashed=[notify_of_failure],
)
def ablation(
    studies: list[str],
    profile: str | None = None,
    params: str = "params.yaml",
    overrides: list[str] | None = None,
    show: str = "auto",
    force: bool = False,
    promote: bool = False,
    until_decided: bool = False,
    most_seeds: int = MOST_SEEDS,
    minutes: float | None = None,
    reserve_seconds: float | None = None,
) -> list[Answer]:
    """Answers each study: prepare, sweep, evaluate, report; skips stages that are up to date.

    A scheduled run fails if a result is significantly worse than the accepted one.

    Args:
        studies: their names.
        profile: another size of all of them.
        params: the file of parameters.
        overrides: `key=value`, which override the studies'.
        show: how progress is shown.
        force: also run stages that are up to date.
        promote: accept the results.
        until_decided: add seeds to arms whose verdict is open, and answer again.
        most_seeds: seeds an arm at which that ends.
        minutes: the time from the start of the flow after which no more seeds are added.
        reserve_seconds: what evaluation and report take. With it the minutes are a limit for the
            trainings too: they end so long before, and the answer is that of the last look.
    """
    if deployment.id is not None and not is_pinned():
        # Prefect loaded this file from the project's folder, which may change during the run.
        pin_sources()
        pinned = importlib.import_module("flows.ablation").ablation
        return cast(
            "list[Answer]",
            pinned.fn(
                studies,
                profile,
                params,
                overrides,
                show,
                force,
                promote,
                until_decided,
                most_seeds,
                minutes,
                reserve_seconds,
            ),
        )
    redact_logs()
    if deployment.id is not None:
        # A run of the worker; `dml run` has done this before it starts the flow.
        note_run(Path(), f"scheduled run of {', '.join(studies)}")
        outlive_server()
    requests = _list_requests(
        {"studies": studies, "profile": profile, "params": params, "overrides": overrides}
    )
    tag_run([request.folder_name for request in requests])
    for request in requests:
        # Finds every problem of every study before any of them starts.
        check_is_free(load_context(request).working_folder)
    budget = SeedBudget(most_seeds, minutes, reserve_seconds) if until_decided else None
    refresh_code()
    for request in requests:
        if budget is not None:
            plan_looks(request, budget)
        track_study(request)
    runs = [pin_run(request) for request in requests]
    with kept_cluster():
        answered = [run_stages(run, show=show, force=force, budget=budget) for run in runs]
    requests, ran = [run.request for run, _ in answered], [names for _, names in answered]
    answers = [read_answer(load_context(request)) for request in requests]
    if answers:
        show_run(requests, answers, ran)
    watched = [watch_result(request, promote=promote) for request in requests]
    if deployment.id is not None:
        check_for_drops(watched)
    return [
        answer.model_copy(update={"watch": each.headline, "has_dropped": each.has_dropped})
        for answer, each in zip(answers, watched, strict=True)
    ]


def run_stages(
    run: PinnedRun, *, show: str, force: bool, budget: SeedBudget | None = None
) -> tuple[PinnedRun, list[str]]:
    """Runs the stale stages of a study, in order, and again for each look that adds seeds.

    Returns:
        The run with the seeds of its last look, and the names of the stages that ran.
    """
    request = run.request
    context = load_context(request)
    with (
        tags(tag_of(request.folder_name)),
        logged_run(context.working_folder, study=request.folder_name) as log,
    ):
        log.write("run started", commit=describe_commit(Path()), profile=request.profile)
        ran: list[str] = []
        is_forced, is_over = force, False
        while True:
            swept = None
            try:
                for name in STAGES:
                    if run_stage(name, run, log, show=show, is_forced=is_forced, budget=budget):
                        ran.append(name)
                        swept = time.perf_counter() if name == "sweep" else swept
            except BudgetSpent as spent:
                # The answer is that of the look before, if there was one; then nothing is stale,
                # unless a kill left a sweep without its report.
                if not take_back_seeds(run.request, spent):
                    raise
                is_over = True
            else:
                if is_over:
                    restore_sweep_record(run.request)
                if budget is not None and swept is not None:
                    seconds = time.perf_counter() - swept
                    budget = budget.with_measured(load_context(run.request), seconds)
                if is_over or budget is None or not add_seeds(run.request, budget):
                    break
            is_forced = False
            track_study(request)
            run = pin_look(run)
        log.write("run ended", stages=ran)
    return run, ran


def run_stage(
    stage: str,
    run: PinnedRun,
    log: RunLog,
    *,
    show: str,
    is_forced: bool = False,
    budget: SeedBudget | None = None,
) -> bool:
    """Runs and commits a stage if it is stale or forced; returns whether it ran.

    Args:
        stage: its name.
        run: the study, with the content of its files.
        log: gets a line at its start and its end.
        show: how progress is shown.
        is_forced: whether it runs in any case.
        budget: ends a sweep so early that its answer is there in time.
    """
    if not (is_forced or is_stale(stage, run)):
        return False
    on_wait = get_run_logger().warning
    with hold_stage(stage, run.request, on_wait=on_wait) as had_to_wait:
        # Another run may have finished the stage in the meantime.
        if had_to_wait and not is_forced and not is_stale(stage, run):
            return False
        started = time.perf_counter()
        log.write("stage started", stage=stage)
        origin = begin_stage(stage, run, on_wait=on_wait)
        if stage == "sweep":
            seconds = budget.seconds_of_sweep(load_context(run.request)) if budget else None
            sweep(run.request, show, seconds)
        else:
            STAGES[stage](run.request)
        changed = commit_stage(stage, run, origin)
        seconds = time.perf_counter() - started
        log.write("stage ended", stage=stage, seconds=seconds, changed_meanwhile=changed or None)
    return True


def _prepare_named(request: StudyRequest, config: DataBase) -> dict[str, Any]:
    """Packs one dataset; an error names the file and the key that set its raw images."""
    try:
        return prepare_data(config, load_project(request).pipeline.ray)
    except DatasetError as error:
        if not isinstance(config, DownloadedData):
            raise
        where = f"data.raw in {request.params}"
        # `dvc repro prepare` works without a study too.
        if request.study_text is not None or (STUDIES_FOLDER / f"{request.study}.yaml").exists():
            where = load_context(request).name_raw(config.raw)
        raise DatasetError(f"{where} is {config.raw!r}: {error}") from error


def _choose_datasets(request: StudyRequest) -> list[Any]:
    if is_versioned(request):
        # The prepare stage of dvc.yaml packs the project's dataset; the sweep packs a study's own.
        return [load_project(request).trial.data]
    return list(load_context(request).datasets)


def _may_have_changed(context: StudyContext, data: DataBase) -> bool:
    """Returns whether the raw images of a dataset are here and no earlier stage checked them."""
    is_own = data in context.own_datasets and isinstance(data, DownloadedData)
    # Prepared data may have come from a remote, without their images.
    return is_own and is_versioned(context.request) and Path(data.raw).expanduser().exists()
