"""Tells the log of a run what becomes of its trials."""

from collections.abc import Callable, Mapping
from typing import Any

from dml_core.studies.trial_spec import TrialRecord, TrialSpec
from tasks.run_log import RunLog

NODE = "node"
"""Key of an epoch's report: where it was trained. One that is read from a file has none."""


class TrialLog:
    """Listens to a sweep. What an earlier process did is told to it again, and is not news."""

    def __init__(self, log: RunLog) -> None:
        self._log = log
        self._nodes: dict[str, str] = {}

    def on_epoch(self, spec: TrialSpec, epoch: Mapping[str, Any]) -> None:
        """An epoch was trained, or told again."""
        node = str(epoch.get(NODE, ""))
        if not node:
            return
        if spec.trial_id not in self._nodes:
            self._log.write("trial runs", **_describe(spec), node=node)
        elif self._nodes[spec.trial_id] != node:
            self._log.write("trial moved", level="warning", **_describe(spec), node=node)
        self._nodes[spec.trial_id] = node
        numbers = {"loss": epoch.get("train_loss"), **epoch.get("validation", {})}
        self._log.write(
            "epoch", **_describe(spec), node=node, epoch=epoch.get("epoch"), numbers=numbers
        )

    def on_trial_end(self, record: TrialRecord) -> None:
        """A trial ended, now or in an earlier process."""
        trial_id = record.spec.trial_id
        self._log.write(
            "trial ended" if trial_id in self._nodes else "trial kept",
            level="error" if record.status == "failed" else "info",
            **_describe(record.spec),
            node=self._nodes.get(trial_id),
            status=record.status,
            score=record.score,
            message=record.reason,
        )


def in_turn(*listeners: Callable[..., None]) -> Callable[..., None]:
    """Returns a listener that tells several, one after the other."""

    def tell(*told: Any) -> None:
        for listener in listeners:
            listener(*told)

    return tell


def _describe(spec: TrialSpec) -> dict[str, Any]:
    return {"trial": spec.trial_id, "arm": spec.arm, "seed": spec.config.seed}
