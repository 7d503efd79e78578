"""One trial of a study: which arm, which try, which fold, and its whole configuration."""

from dataclasses import dataclass
from typing import Any, Literal

from dml_core.config import TrialConfig

Phase = Literal["search", "repeat"]
"""search: tries nuisance values of an arm; repeat: trains a winner with another seed."""


@dataclass(frozen=True)
class TrialSpec:
    """A trial before it runs; equal studies give equal specs on every machine."""

    trial_id: str
    """Unique in its study and safe as a file name: `<arm>-<number>`, `<arm>-<number>-fold1`,
    or `<arm>-seed3`."""
    study: str
    arm: str
    phase: Phase
    number: int
    """Which try of the arm, from 0; for repeats the position of the seed."""
    values: dict[str, Any]
    """The sampled nuisance values, by dotted key."""
    config: TrialConfig


TrialStatus = Literal["finished", "pruned", "diverged", "collapsed", "failed"]


@dataclass(frozen=True)
class TrialRecord:
    """A trial after it ran: one row of trials.parquet."""

    spec: TrialSpec
    status: TrialStatus
    reason: str
    """Why it did not finish; empty where it did."""
    epochs: int
    """Finished epochs."""
    best_epoch: int
    score: float | None
    """The selection metric on validation; None where there is none."""
    validation: dict[str, float]
    """All validation metrics of the best epoch."""
    key: str
    """Names its journal in the store of trials."""
    train_seconds: float
    resumed: int = 0
    """Number of interruptions after which it resumed and finished an epoch."""


def spec_to_plain(spec: TrialSpec) -> dict[str, Any]:
    """Returns a spec as JSON-like values."""
    return {
        "trial_id": spec.trial_id,
        "study": spec.study,
        "arm": spec.arm,
        "phase": spec.phase,
        "number": spec.number,
        "values": dict(spec.values),
        "config": spec.config.model_dump(mode="json"),
    }


def spec_from_plain(plain: dict[str, Any]) -> TrialSpec:
    """Returns the spec from the values of `spec_to_plain`."""
    return TrialSpec(**{**plain, "config": TrialConfig.model_validate(plain["config"])})
