"""One Ray Tune job: runs what a conductor hands out until it has no more."""

import logging
import shutil
import uuid
from functools import partial
from pathlib import Path

from ray import tune
from ray.tune.experiment import Trial

from dml_core.config.pipeline import PipelineConfig
from tasks.adapters.ray_bundles import bundles_of, bundles_of_trial
from tasks.adapters.ray_cluster import count_concurrent
from tasks.adapters.ray_hooks import (
    LedCallback,
    LedScheduler,
    LedSearcher,
    LedStopper,
    MakeOrder,
    SilentProgress,
)
from tasks.adapters.ray_trainable import order_from_config, run_tune_trial
from tasks.sweep_conductor import Conductor


def run_tune_job(
    conductor: Conductor,
    pipeline: PipelineConfig,
    *,
    folder: Path,
    make_order: MakeOrder,
    workers: int = 1,
) -> None:
    """Runs all trials of a conductor on the joined cluster.

    Tune's files tell nothing that the ledger does not, so they are removed at the end.

    Args:
        conductor: hands out the trials.
        pipeline: what a trial's workers get of the cluster, and how often a trial is restarted.
        folder: for Tune's own files.
        make_order: from a trial's spec to what its worker has to know.
        workers: most workers of a trial.
    """
    # A dead worker is an outcome that the record tells of.
    for name in ("ray.tune", "ray.train", "ray.air"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # What a killed driver left; whoever calls this holds the only right to work there.
    shutil.rmtree(folder, ignore_errors=True)
    name = f"job-{uuid.uuid4().hex[:8]}"
    ray_config, sweep = pipeline.ray, pipeline.sweep
    # A function is asked about each trial, and goes along to every worker with what it imports.
    bundles = bundles_of(ray_config) if workers == 1 else partial(bundles_of_trial, ray_config)
    trainable = tune.with_resources(run_tune_trial, bundles)
    tuner = tune.Tuner(
        trainable,
        tune_config=tune.TuneConfig(
            search_alg=LedSearcher(conductor, make_order),
            scheduler=LedScheduler(conductor),
            # The searcher says when there are no more trials.
            num_samples=-1,
            max_concurrent_trials=count_concurrent(ray_config, workers=workers),
            reuse_actors=True,
            trial_name_creator=_name_trial,
            trial_dirname_creator=_name_trial,
        ),
        run_config=tune.RunConfig(
            name=name,
            storage_path=str(folder.resolve()),
            failure_config=tune.FailureConfig(max_failures=sweep.max_restarts),
            callbacks=[
                LedCallback(conductor, max_restarts=sweep.max_restarts),
                SilentProgress(),
            ],
            stop=LedStopper(conductor, timeout_seconds=sweep.timeout_seconds),
            verbose=0,
        ),
    )
    try:
        tuner.fit()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    conductor.raise_error()


def _name_trial(trial: Trial) -> str:
    return str(order_from_config(trial.config).spec["trial_id"])
