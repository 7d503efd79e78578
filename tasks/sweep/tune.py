"""One Ray Tune job: runs the trials of the conductor and passes Tune's events on to it."""

import json
import logging
import math
import shutil
import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

from ray import tune
from ray.tune import Callback, Stopper
from ray.tune.experiment import Trial
from ray.tune.progress_reporter import TrialProgressCallback
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from dml_core.config.pipeline import PipelineConfig
from dml_core.trials.spec import TrialSpec
from tasks.machine_faults import recall_fault
from tasks.sweep.cluster import count_concurrent, is_cluster_lost
from tasks.sweep.conductor import Conductor
from tasks.sweep.job import (
    EPOCHS,
    MESSAGES,
    TrialJob,
    bundles_of,
    bundles_of_trial,
    job_from_config,
    job_to_config,
    run_tune_trial,
)
from tasks.sweep.nodes import TrialNeed, count_nodes, need_of
from tasks.sweep.priority import Turns, find_board_on_cluster

LOGGER = logging.getLogger(__name__)

SECONDS_BETWEEN_COUNTS = 2.0
"""Between two counts of the nodes of a joined cluster."""
MakeJob = Callable[[TrialSpec], TrialJob]


class _OnDriver:
    """Opts out of Tune's pickling: the journals and the ledger hold the state."""

    def __reduce__(self) -> tuple[type[object], tuple[()]]:
        return object, ()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


HandedOut = dict[str, TrialSpec]
"""The trials that Tune has and that have not ended, by Tune's ids, in the order of their start."""


class LedSearcher(_OnDriver, Searcher):
    """Gives Tune the next trial of the conductor."""

    def __init__(
        self,
        conductor: Conductor,
        make_job: MakeJob,
        handed_out: HandedOut,
        turns: Turns | None = None,
    ) -> None:
        super().__init__()
        self._conductor = conductor
        self._make_job = make_job
        self._handed_out = handed_out
        self._turns = turns

    def suggest(self, trial_id: str) -> Any:
        """Returns the next trial's config, None if there is none yet, or `FINISHED`."""
        if self._turns and not self._turns.may_start() and not self._conductor.must_stop:
            self._turns.give_way()
            return None
        spec = None
        with self._conductor.kept_errors():
            spec = self._conductor.next()
        if spec is not None:
            self._handed_out[trial_id] = spec
            return job_to_config(self._make_job(spec))
        return str(Searcher.FINISHED) if self._conductor.is_exhausted else None

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Does nothing: `LedCallback` receives the event together with the trial's config."""

    def save(self, checkpoint_path: str) -> None:
        """Does nothing: the ledger holds the state of the search."""

    def restore(self, checkpoint_path: str) -> None:
        """Does nothing: the ledger holds the state of the search."""


def release_idle_workers(tune_controller: Any) -> None:
    """Ends the workers that Tune keeps for later trials, since they keep the room of others.

    Args:
        tune_controller: the wrapper that a scheduler gets. Tune has no public way to do this, and
            the wrapper warns of what is not public.
    """
    controller = getattr(tune_controller, "_tune_controller", tune_controller)
    controller._cleanup_cached_actors(force_all=True)
    if not controller.get_live_trials():
        # Tune waits in the searcher then, and would neither see the workers end nor stop.
        controller._actor_manager.next(timeout=0.1)
        controller._stop_experiment_if_needed()


class LedScheduler(_OnDriver, FIFOScheduler):
    """Starts trials in their order and stops those that the conductor prunes."""

    # A buffered result would be judged too late to save epochs.
    _supports_buffered_results = False

    def __init__(
        self, conductor: Conductor, handed_out: HandedOut, turns: Turns | None = None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._conductor = conductor
        self._handed_out = handed_out
        self._turns = turns

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Returns the first trial that waits; Tune's own search goes through all ended ones."""
        live = {trial.trial_id: trial for trial in tune_controller.get_live_trials()}
        waiting = (live.get(trial_id) for trial_id in self._handed_out)
        found = next((trial for trial in waiting if trial and trial.status == Trial.PENDING), None)
        if self._turns:
            self._turns.give_way = partial(release_idle_workers, tune_controller)
            self._turns.waits = found is not None
            # Also where all trials are handed out, so that the others learn of those that wait.
            if not self._turns.may_start() and found is None:
                self._turns.give_way()
        return found

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Passes epochs on and returns whether the trial continues."""
        continues, spec = True, self._handed_out[trial.trial_id]
        for epoch in json.loads(result.get(EPOCHS, "[]")):
            for message in epoch.pop(MESSAGES, []):
                LOGGER.warning("trial %s: %s", spec.trial_id, message)
            with self._conductor.kept_errors():
                continues = self._conductor.report(spec, epoch) and continues
        return str(TrialScheduler.CONTINUE if continues else TrialScheduler.STOP)


class LedCallback(_OnDriver, Callback):
    """Reports to the conductor when trials start and end."""

    def __init__(self, conductor: Conductor, handed_out: HandedOut) -> None:
        self._conductor = conductor
        self._handed_out = handed_out

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **_: Any) -> None:
        """A worker has answered for a trial, so it begins it."""
        with self._conductor.kept_errors():
            self._conductor.start(self._handed_out[trial.trial_id])

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **_: Any
    ) -> None:
        """A trial has ended, or was stopped with the sweep."""
        spec = self._handed_out.pop(trial.trial_id)
        with self._conductor.kept_errors():
            self._conductor.end(spec)

    def on_trial_recover(self, iteration: int, trials: list[Trial], trial: Trial, **_: Any) -> None:
        """A trial's node was preempted: Tune restarts the trial, and that counts nowhere."""
        LOGGER.warning(
            "trial %s: its node was preempted. It resumes on another one from its last epoch.",
            self._handed_out[trial.trial_id].trial_id,
        )

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **_: Any) -> None:
        """A trial's worker died; errors of the training itself are results."""
        spec = self._handed_out.pop(trial.trial_id)
        if is_cluster_lost() or self._stops_for_machine(trial):
            return
        with self._conductor.kept_errors():
            self._conductor.lose_worker(spec, why=_why_it_died(trial))

    def _stops_for_machine(self, trial: Trial) -> bool:
        """Stops the sweep if a node cannot train because of its disk or its code."""
        store = Path(job_from_config(trial.config).store)
        fault = recall_fault(_read_error(trial), store)
        with self._conductor.kept_errors():
            if fault is not None:
                raise fault
        return fault is not None


class SilentProgress(_OnDriver, TrialProgressCallback):
    """Replaces Tune's own reporter, which prints a line for a trial without epochs."""

    def log_result(self, *_: Any, **__: Any) -> None:
        """Prints nothing."""

    def _print(self, msg: str) -> None:
        """Prints nothing."""


class SweepTimedOut(ValueError):
    """A sweep worked longer than sweep.timeout_seconds allows; all journals are kept."""


class LedStopper(_OnDriver, Stopper):
    """Ends the sweep when too many trials failed, its time is over, or the driver raised.

    `TuneConfig(time_budget_s=...)` would end the job without an error, as if all trials were done.
    """

    def __init__(
        self,
        conductor: Conductor,
        *,
        timeout_seconds: float = 0.0,
        check_held: Callable[[], None] = lambda: None,
        check_budget: Callable[[], None] = lambda: None,
        counts_nodes: bool = False,
    ) -> None:
        self._conductor = conductor
        self._timeout_seconds = timeout_seconds
        self._check_budget = check_budget
        self._check_held = check_held
        self._started = time.monotonic()
        self._next_count = self._started if counts_nodes else math.inf

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Stops no single trial."""
        return False

    def stop_all(self) -> bool:
        """Returns whether the whole sweep must stop; Tune calls it some ten times a second."""
        with self._conductor.kept_errors():
            self._check_budget()
            self._check_time()
            self._check_held()
            self._count_nodes()
        return self._conductor.must_stop

    def _count_nodes(self) -> None:
        if time.monotonic() >= self._next_count:
            self._next_count = time.monotonic() + SECONDS_BETWEEN_COUNTS
            self._conductor.note_nodes(count_nodes())

    def _check_time(self) -> None:
        if 0 < self._timeout_seconds <= time.monotonic() - self._started:
            raise SweepTimedOut(
                f"sweep.timeout_seconds={self._timeout_seconds:g} is over, so the sweep was "
                f"stopped with {len(self._conductor.records)} trials done; all finished trials and "
                "epochs are kept. The same command resumes for as long again; raise the limit, or "
                "set it to 0 for none."
            )


def _why_it_died(trial: Trial) -> str:
    """Returns why a trial's worker died, in a line; empty if the reason is unknown."""
    note = Path(job_from_config(trial.config).note)
    if note.exists():
        why = note.read_text(encoding="utf-8")
        # The next worker may die before it begins, and for another reason.
        note.unlink()
        return why
    lines = _read_error(trial).strip().splitlines()
    # The last line names the error; the lines before it are its origin. Ray appends its guesses.
    return lines[-1].partition(" Some common causes include")[0].strip()[:300] if lines else ""


def _read_error(trial: Trial) -> str:
    """Returns the text of a trial's error; `trial.get_error` reads a copy that Tune makes later."""
    file = Path(trial.error_file or "")
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def run_tune_job(
    conductor: Conductor,
    pipeline: PipelineConfig,
    *,
    folder: Path,
    make_job: MakeJob,
    needs: Sequence[TrialNeed] = (),
    check_held: Callable[[], None] = lambda: None,
    check_budget: Callable[[], None] = lambda: None,
) -> None:
    """Runs all trials of a conductor on the joined cluster.

    Tune's own ASHA, searchers and restore are not used: they judge all arms as one population and
    cannot resume a killed search to the same trials, which the ledger can. So Tune's files hold
    nothing of value and are removed at the end.

    Args:
        conductor: chooses the trials.
        pipeline: the resources of a trial's workers, and the time limit of the sweep.
        folder: for Tune's own files.
        make_job: returns the job of a trial's worker.
        needs: the different resources of trials; by default one worker.
        check_held: raises when another driver has taken over.
        check_budget: raises when the budget of the command is spent.
    """
    # The conductor reports dead workers.
    for name in ("ray.tune", "ray.train", "ray.air"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # Left by a killed driver; the caller holds the lock of the study's folder.
    shutil.rmtree(folder, ignore_errors=True)
    name = f"job-{uuid.uuid4().hex[:8]}"
    ray_config, sweep = pipeline.ray, pipeline.sweep
    # A function is called for each trial, and is pickled to every worker with its imports.
    is_plain = set(needs) <= {need_of(ray_config)}
    bundles = bundles_of(ray_config) if is_plain else partial(bundles_of_trial, ray_config)
    trainable = tune.with_resources(run_tune_trial, bundles)
    handed_out: HandedOut = {}
    # A local cluster has one driver.
    is_shared = ray_config.address != "local"
    turns = Turns(ray_config.priority, find_board=find_board_on_cluster) if is_shared else None
    tuner = tune.Tuner(
        trainable,
        tune_config=tune.TuneConfig(
            search_alg=LedSearcher(conductor, make_job, handed_out, turns),
            scheduler=LedScheduler(conductor, handed_out, turns),
            # The searcher ends the job.
            num_samples=-1,
            max_concurrent_trials=count_concurrent(ray_config, needs),
            reuse_actors=True,
            trial_name_creator=_name_trial,
            trial_dirname_creator=_name_trial,
        ),
        run_config=tune.RunConfig(
            name=name,
            storage_path=str(folder.resolve()),
            # The conductor restarts trials. Tune ends a trial at once, whatever is set here, if the
            # idle worker that it reuses is dead; and it counts deaths before the trial began.
            failure_config=tune.FailureConfig(max_failures=0),
            callbacks=[LedCallback(conductor, handed_out), SilentProgress()],
            stop=LedStopper(
                conductor,
                timeout_seconds=sweep.timeout_seconds,
                counts_nodes=is_shared,
                check_held=check_held,
                check_budget=check_budget,
            ),
            verbose=0,
        ),
    )
    try:
        tuner.fit()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if turns and not is_cluster_lost():
            turns.leave()
    conductor.raise_error()


def _name_trial(trial: Trial) -> str:
    return str(job_from_config(trial.config).spec["trial_id"])
