"""Sweeps of trials that only wait, run by the real conductor, Tune and recorder."""

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import psutil

from benchmarks.projects import ROOT, make_project
from benchmarks.stub_trials import PLAN_FILE, TIMES_FILE, WORKERS_FOLDER, run_stub_trial
from dml_core.config.pipeline import RayConfig
from dml_core.trials.ledger import Ledger
from dml_core.trials.spec import TrialSpec, spec_to_plain
from dml_core.trials.store import LocalStore
from tasks.run_log import in_turn
from tasks.study import StudyContext, StudyRequest, load_context
from tasks.sweep import cluster as ray_cluster
from tasks.sweep import tune as ray_tune_job
from tasks.sweep.conductor import Conductor, ListedTrials, SearchThenRepeats, SweepEvents
from tasks.sweep.job import TrialJob
from tasks.sweep.progress import ProgressTracker
from tasks.tracking.identity import SweepFacts
from tasks.tracking.sync import SweepRecorder

STUDY = "stubbed"


@dataclass(frozen=True)
class Led:
    """What leading a sweep of trials without length took."""

    ends: list[float]
    """When each trial ended, in order."""
    seconds: float
    """Until all was recorded in MLflow too."""
    processor_times: list[float]
    """Processor time of the driver so far, when it notes the end of each trial."""
    driver_seconds: float
    """Processor time of the driver."""
    grown_mebibytes: float
    """Growth of the driver's memory."""
    resume_seconds: float
    """Until another driver knows that nothing is left to do."""


def run_stubs(*, nodes: int, seconds: float, rounds: int) -> list[tuple[float, float]]:
    """Runs stub trials on logical CPUs and returns the begin and end of each.

    Args:
        nodes: concurrent trials.
        seconds: length of a trial.
        rounds: trials per node, after a first one in which all wait for each other.
    """
    with _stubbed(nodes * (rounds + 1), nodes=nodes, seconds=seconds) as (context, store):
        _conduct(context, store)
        return _read_times(store)


def lead_stubs(num_trials: int, *, nodes: int) -> Led:
    """Runs trials that end at once, so that the driver has all the work, and resumes them."""
    with _stubbed(num_trials, nodes=nodes, seconds=0.0) as (context, store):
        process = psutil.Process()
        before, began = process.memory_info().rss, process.cpu_times()
        started = time.perf_counter()
        processor_times = _conduct(context, store)
        ended, after = process.cpu_times(), process.memory_info().rss
        seconds, started = time.perf_counter() - started, time.perf_counter()
        ledger, specs = _open_ledger(context, store), context.study.search_specs()
        assert not _make_conductor(ledger, specs, SweepEvents()).has_next()
        return Led(
            ends=sorted(end for _, end in _read_times(store)),
            seconds=seconds,
            processor_times=processor_times,
            driver_seconds=ended.user + ended.system - began.user - began.system,
            grown_mebibytes=(after - before) / 2**20,
            resume_seconds=time.perf_counter() - started,
        )


@contextlib.contextmanager
def _stubbed(
    num_trials: int, *, nodes: int, seconds: float
) -> Iterator[tuple[StudyContext, LocalStore]]:
    """Yields a study of stub trials in its project, with a cluster for them."""
    with tempfile.TemporaryDirectory(prefix="dml-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        project = make_project(folder, {"mlflow.tracking_uri": f"sqlite:///{folder}/mlflow.db"})
        project.write_study(STUDY, _make_study(num_trials))
        with contextlib.chdir(folder):
            context = load_context(StudyRequest(study=STUDY))
            trials = context.trials_folder.resolve()
            context.working_folder.mkdir(parents=True)
            (trials.parent / WORKERS_FOLDER).mkdir()
            plan = json.dumps({"nodes": nodes, "seconds": seconds})
            (trials.parent / PLAN_FILE).write_text(plan, encoding="ascii")
            environment = {
                # A worker starts in its own folder and must find this package.
                "PYTHONPATH": str(ROOT),
                # Ray warns about every worker beyond the number of real cores.
                "RAY_worker_maximum_startup_concurrency": str(nodes),
            }
            # Its variable lasts as long as this process, unlike those below.
            ray_cluster.provide_token()
            with (
                mock.patch.dict(os.environ, environment),
                simulated_nodes(context.project.pipeline.ray, nodes),
            ):
                yield context, LocalStore(trials)


def _read_times(store: LocalStore) -> list[tuple[float, float]]:
    files = Path(store.location).glob(f"*/{TIMES_FILE}")
    found = [json.loads(file.read_text(encoding="ascii")) for file in files]
    return [(times["began"], times["ended"]) for times in found]


def _make_study(num_trials: int) -> dict[str, Any]:
    rates = [0.001 * (1 + number / 1000) for number in range(num_trials)]
    return {
        "question": "How many trials can a driver lead?",
        "arms": {"stub": {"loss.name": "proxy_anchor"}},
        "fixed": {"training.epochs": 2},
        "nuisance": {"optimizer.learning_rate": {"choice": rates}},
        "searcher": "grid",
        "seeds": [0],
    }


@contextlib.contextmanager
def simulated_nodes(config: RayConfig, nodes: int) -> Iterator[None]:
    """Starts a cluster with more logical CPUs than this machine has cores."""
    with contextlib.ExitStack() as stack:
        with mock.patch.object(os, "sched_getaffinity", return_value=set(range(nodes))):
            stack.enter_context(ray_cluster.connect(config))
        yield


def _conduct(context: StudyContext, store: LocalStore) -> list[float]:
    """Runs the trials; returns the processor time of this process at the end of each."""
    processor_times: list[float] = []
    pipeline, specs = context.project.pipeline, context.study.search_specs()
    ledger = _open_ledger(context, store)
    with SweepRecorder(pipeline.mlflow, store=store, key_of=ledger.key) as recorder:
        recorder.start(context.study, SweepFacts())
        events = SweepEvents(
            on_trial_start=recorder.on_trial_start,
            on_epoch=recorder.on_epoch,
            on_trial_end=in_turn(
                recorder.on_trial_end, lambda _: processor_times.append(time.process_time())
            ),
        )
        with mock.patch.object(ray_tune_job, "run_tune_trial", run_stub_trial):
            ray_tune_job.run_tune_job(
                _make_conductor(ledger, specs, events),
                pipeline,
                folder=context.working_folder.resolve() / "tune",
                make_job=lambda spec: _make_job(spec, ledger),
            )
        recorder.finish({})
    return processor_times


def _open_ledger(context: StudyContext, store: LocalStore) -> Ledger:
    folder = context.working_folder.resolve()
    return Ledger(folder, store, code="stub", data_version=lambda _: "")


def _make_conductor(ledger: Ledger, specs: Sequence[TrialSpec], events: SweepEvents) -> Conductor:
    return Conductor(
        SearchThenRepeats(ListedTrials(list(specs)), lambda _: []),
        ledger,
        tracker=ProgressTracker(STUDY, total=len(specs)),
        events=events,
        max_failed=0,
        max_restarts=0,
    )


def _make_job(spec: TrialSpec, ledger: Ledger) -> TrialJob:
    return TrialJob(
        spec=spec_to_plain(spec),
        key=ledger.key(spec),
        store=ledger.store.location,
        note="",
        working_folder=str(Path.cwd()),
        data_version="",
    )
