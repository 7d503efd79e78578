"""What a process knows of a run in MLflow, so that it need not ask."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow.entities import Run


@dataclass
class KnownRun:
    """A run as it was found or made, with what was written since: asking anew takes a request."""

    run_id: str
    status: str
    """MLflow's own: RUNNING, FINISHED, KILLED or FAILED."""
    params: dict[str, str]
    metrics: dict[str, float]
    tags: dict[str, str]
    epochs: dict[int, float | None] | None
    """The value of the metric that every epoch has, by epoch; None where nobody looked yet."""


def know_run(run: "Run") -> KnownRun:
    """Returns what the store tells of a run when it is found."""
    return KnownRun(
        run_id=run.info.run_id,
        status=run.info.status,
        params=dict(run.data.params),
        metrics=dict(run.data.metrics),
        tags=dict(run.data.tags),
        epochs=None,
    )
