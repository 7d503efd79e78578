"""What Ray Tune asks and tells during a sweep, passed on to the sweep's conductor."""

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from ray.tune import Callback, Stopper
from ray.tune.experiment import Trial
from ray.tune.progress_reporter import TrialProgressCallback
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from dml_core.studies.plain_specs import spec_from_plain
from dml_core.studies.trial_spec import TrialSpec
from tasks.adapters.ray_trainable import EPOCHS, order_from_config, order_to_config
from tasks.machine_faults import DiskFull, say_full
from tasks.sweep_conductor import Conductor
from tasks.trial_order import HUNG_FILE, TrialOrder
from tasks.worker_messages import MESSAGES

LOGGER = logging.getLogger(__name__)

MakeOrder = Callable[[TrialSpec], TrialOrder]


class _OnDriver:
    """Stays on the driver: Tune stores copies of its hooks, which the ledger makes needless."""

    def __reduce__(self) -> tuple[type[object], tuple[()]]:
        return object, ()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


class LedSearcher(_OnDriver, Searcher):
    """Hands Tune the trials that the conductor has next."""

    def __init__(self, conductor: Conductor, make_order: MakeOrder) -> None:
        super().__init__()
        self._conductor = conductor
        self._make_order = make_order

    def suggest(self, trial_id: str) -> Any:
        """Returns the next trial's config, None when there is none yet, or that all is done."""
        spec = None
        with self._conductor.kept_errors():
            spec = self._conductor.next()
        if spec is not None:
            return order_to_config(self._make_order(spec))
        return str(Searcher.FINISHED) if self._conductor.is_exhausted else None

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Does nothing: `LedCallback` hears of it with the trial's config at hand."""

    def save(self, checkpoint_path: str) -> None:
        """Does nothing: the ledger holds the search's state."""

    def restore(self, checkpoint_path: str) -> None:
        """Does nothing: the ledger holds the search's state."""


class LedScheduler(_OnDriver, FIFOScheduler):
    """Stops the trials that the conductor does not let go on."""

    # A buffered result would be judged only after the epochs that it might have saved.
    _supports_buffered_results = False

    def __init__(self, conductor: Conductor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._conductor = conductor

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Passes epochs on and returns whether the trial goes on."""
        goes_on = True
        for epoch in json.loads(result.get(EPOCHS, "[]")):
            for message in epoch.pop(MESSAGES, []):
                LOGGER.warning("trial %s: %s", _spec_of(trial).trial_id, message)
            with self._conductor.kept_errors():
                goes_on = self._conductor.report(_spec_of(trial), epoch) and goes_on
        return str(TrialScheduler.CONTINUE if goes_on else TrialScheduler.STOP)


class LedCallback(_OnDriver, Callback):
    """Tells the conductor when trials start and end."""

    def __init__(self, conductor: Conductor, *, max_restarts: int) -> None:
        self._conductor = conductor
        self._max_restarts = max_restarts

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **_: Any) -> None:
        """A trial has a worker."""
        with self._conductor.kept_errors():
            self._conductor.start(_spec_of(trial))

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **_: Any
    ) -> None:
        """A trial has ended, or was stopped with the sweep."""
        with self._conductor.kept_errors():
            self._conductor.end(_spec_of(trial))

    def on_trial_recover(self, iteration: int, trials: list[Trial], trial: Trial, **_: Any) -> None:
        """A trial's worker died; another one takes over."""
        if self._stops_for_full_disk(trial):
            return
        LOGGER.warning(
            "trial %s: its worker died (%s). It goes on in another one from its last epoch.",
            _spec_of(trial).trial_id, _why_it_died(trial) or "nobody knows why",
        )  # fmt: skip

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **_: Any) -> None:
        """A trial's worker died too often: a training's own errors are results."""
        if self._stops_for_full_disk(trial):
            return
        why = _why_it_died(trial)
        last = f" The last time: {why}" if why else ""
        reason = f"its worker died, and sweep.max_restarts={self._max_restarts} did not help.{last}"
        with self._conductor.kept_errors():
            self._conductor.end(_spec_of(trial), error=reason)

    def _stops_for_full_disk(self, trial: Trial) -> bool:
        """Stops the sweep where a trial met a full disk, which is no fault of the trial's."""
        is_full = DiskFull.__name__ in str(trial.get_error() or "")
        with self._conductor.kept_errors():
            if is_full:
                raise DiskFull(say_full(Path(order_from_config(trial.config).folder)))
        return is_full


class SilentProgress(_OnDriver, TrialProgressCallback):
    """Takes the place of Tune's own, which prints a line for a trial without epochs."""

    def log_result(self, *_: Any, **__: Any) -> None:
        """Prints nothing."""

    def _print(self, msg: str) -> None:
        """Prints nothing."""


class SweepTimedOut(ValueError):
    """A sweep worked longer than sweep.timeout_seconds allows; the ledger is kept."""


class LedStopper(_OnDriver, Stopper):
    """Ends the sweep when too many trials failed, its time is over, or the driver made an error."""

    def __init__(self, conductor: Conductor, *, timeout_seconds: float = 0.0) -> None:
        self._conductor = conductor
        self._timeout_seconds = timeout_seconds
        self._started = time.monotonic()

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Stops no single trial."""
        return False

    def stop_all(self) -> bool:
        """Returns whether the whole sweep has to stop; Tune asks some ten times a second."""
        with self._conductor.kept_errors():
            self._check_time()
        return self._conductor.must_stop

    def _check_time(self) -> None:
        if 0 < self._timeout_seconds <= time.monotonic() - self._started:
            raise SweepTimedOut(
                f"the sweep was stopped after sweep.timeout_seconds={self._timeout_seconds:g}, "
                f"with {len(self._conductor.records)} trials done. All epochs are kept: the same "
                "command goes on where it stopped. Allow more time there, or 0 for no limit."
            )


def _why_it_died(trial: Trial) -> str:
    """Returns why a trial's worker died, in a line; empty where nobody knows."""
    note = Path(order_from_config(trial.config).folder) / HUNG_FILE
    if note.exists():
        return note.read_text(encoding="utf-8")
    lines = str(trial.get_error() or "").strip().splitlines()
    # The last line names the error; those before it are where it came from.
    return lines[-1].strip()[:300] if lines else ""


def _spec_of(trial: Trial) -> TrialSpec:
    return spec_from_plain(order_from_config(trial.config).spec)
