"""Sweeps of trials that only wait, run by the real conductor, Tune and recorder."""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.projects import ROOT, make_project
from benchmarks.stub_trials import PLAN_FILE, TIMES_FILE, WORKERS_FOLDER, run_stub_trial
from dml_core.config.pipeline import RayConfig
from dml_core.trials.ledger import Ledger
from dml_core.trials.spec import TrialSpec, spec_to_plain
from dml_core.trials.store import LocalStore
from tasks.study import StudyContext, StudyRequest, load_context
from tasks.sweep import cluster as ray_cluster
from tasks.sweep import tune as ray_tune_job
from tasks.sweep.conductor import Conductor, ListedTrials, SearchThenRepeats, SweepEvents
from tasks.sweep.job import TrialJob
from tasks.sweep.progress import ProgressTracker
from tasks.tracking.identity import SweepFacts
from tasks.tracking.sync import SweepRecorder

STUDY = "stubbed"


def run_stubs(*, nodes: int, seconds: float, rounds: int) -> list[tuple[float, float]]:
    """Runs stub trials on logical CPUs and returns the begin and end of each.

    Args:
        nodes: concurrent trials.
        seconds: length of a trial.
        rounds: trials per node, after a first one in which all wait for each other.
    """
    with tempfile.TemporaryDirectory(prefix="dml-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        project = make_project(folder, {"mlflow.tracking_uri": f"sqlite:///{folder}/mlflow.db"})
        project.write_study(STUDY, _make_study(nodes * (rounds + 1)))
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
            with (
                mock.patch.dict(os.environ, environment),
                _simulated_nodes(context.project.pipeline.ray, nodes),
            ):
                _conduct(context, LocalStore(trials))
        files = trials.glob(f"*/{TIMES_FILE}")
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
def _simulated_nodes(config: RayConfig, nodes: int) -> Iterator[None]:
    """Starts a cluster with more logical CPUs than this machine has cores."""
    with contextlib.ExitStack() as stack:
        with mock.patch.object(os, "sched_getaffinity", return_value=set(range(nodes))):
            stack.enter_context(ray_cluster.connect(config))
        yield


def _conduct(context: StudyContext, store: LocalStore) -> None:
    pipeline, specs = context.project.pipeline, context.study.search_specs()
    folder = context.working_folder.resolve()
    ledger = Ledger(folder, store, code="stub", data_version=lambda _: "")
    with SweepRecorder(pipeline.mlflow, store=store, key_of=ledger.key) as recorder:
        recorder.start(context.study, SweepFacts())
        conductor = Conductor(
            SearchThenRepeats(ListedTrials(specs), lambda _: []),
            ledger,
            tracker=ProgressTracker(STUDY, total=len(specs)),
            events=SweepEvents(
                on_trial_start=recorder.on_trial_start,
                on_epoch=recorder.on_epoch,
                on_trial_end=recorder.on_trial_end,
            ),
            max_failed=0,
            max_restarts=0,
        )
        with mock.patch.object(ray_tune_job, "run_tune_trial", run_stub_trial):
            ray_tune_job.run_tune_job(
                conductor,
                pipeline,
                folder=folder / "tune",
                make_job=lambda spec: _make_job(spec, ledger),
            )
        recorder.finish({})


def _make_job(spec: TrialSpec, ledger: Ledger) -> TrialJob:
    return TrialJob(
        spec=spec_to_plain(spec),
        key=ledger.key(spec),
        store=ledger.store.location,
        note="",
        working_folder=str(Path.cwd()),
        data_version="",
    )
