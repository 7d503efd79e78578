"""The log of a study's run, in lines of JSON, with the events of its trials."""

import json
import logging
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dml_core.trials.spec import TrialRecord, TrialSpec
from tasks.secrets import make_owner_only_folder, redact

FOLDER_NAME = "logs"
KEPT_RUNS = 50
"""Logs of older runs are removed when a new one begins."""
_LOGGERS = ("dml_core", "tasks", "flows")

EVENTS = logging.getLogger("dml.events")
"""Repeats the events of runs for the pages of Prefect, which takes them up where it is set up to;
never for the terminal, which shows them in its own way."""
EVENTS.propagate = False
EVENTS.setLevel(logging.INFO)
EVENTS.addHandler(logging.NullHandler())
_NOT_REPEATED = ("epoch", "message")
"""Epochs are too many for a page, and messages get there by their own loggers."""

_open: dict[Path, "RunLog"] = {}
"""The logs that this process writes now, by the folder of the study."""


class RunLog:
    """Appends lines; each is one write, so a reader never sees a part of a line."""

    def __init__(self, path: Path, *, study: str) -> None:
        self.path = path
        self._study = study
        make_owner_only_folder(path.parent)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, event: str, *, level: str = "info", **fields: Any) -> None:
        """Adds a line; fields that are None or empty are left out."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        known = {key: value for key, value in fields.items() if value not in (None, "")}
        line = {"time": now, "level": level, "event": event, "study": self._study, **known}
        text = redact(json.dumps(line, default=str, ensure_ascii=False))
        # A full disk must not end a sweep that can continue without its log.
        with suppress(OSError):
            os.write(self._descriptor, text.encode() + b"\n")
        if event not in _NOT_REPEATED:
            # A page shows time and level by itself.
            shown = redact(describe_line({**line, "time": "", "level": "info"}))
            EVENTS.log(logging.getLevelNamesMapping()[level.upper()], "%s", shown)

    def close(self) -> None:
        """Ends the log."""
        os.close(self._descriptor)


class _ToRunLog(logging.Handler):
    """Brings what the project's own loggers say into the log of the run."""

    def __init__(self, log: RunLog) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Adds a record as a line."""
        self._log.write(
            "message", level=record.levelname.lower(), message=record.getMessage(),
            logger=record.name,
        )  # fmt: skip


@contextmanager
def logged_run(working_folder: Path, *, study: str) -> Iterator[RunLog]:
    """Opens a log for the block; within another block of the same study it is the same log.

    Args:
        working_folder: the study's working folder, which holds the logs.
        study: name of the study.
    """
    if log := _open.get(working_folder):
        yield log
        return
    folder = working_folder / FOLDER_NAME
    log = RunLog(folder / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}.jsonl",
                 study=study)  # fmt: skip
    _remove_old(folder)
    handler = _ToRunLog(log)
    _open[working_folder] = log
    for name in _LOGGERS:
        logging.getLogger(name).addHandler(handler)
    try:
        yield log
    except BaseException as error:
        log.write(
            "run failed", level="error", error=type(error).__name__, message=str(error),
            trace=traceback.format_exc(),
        )  # fmt: skip
        raise
    finally:
        for name in _LOGGERS:
            logging.getLogger(name).removeHandler(handler)
        del _open[working_folder]
        log.close()


def list_logs(working_folder: Path) -> list[Path]:
    """Returns the logs of a study's runs, the oldest first."""
    return sorted((working_folder / FOLDER_NAME).glob("*.jsonl"))


def read_log(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yields the lines of a log; a last line that a full disk cut short is left out."""
    with open(path, encoding="utf-8", errors="replace") as file:
        for text in file:
            try:
                line = json.loads(text)
            except ValueError:
                continue
            if isinstance(line, dict):
                yield line


def describe_line(line: Mapping[str, Any]) -> str:
    """Returns a line of a log as readable text."""
    clock = str(line.get("time", ""))[:19].replace("T", " ")
    parts = [f"{clock} {line.get('event', '')}".strip()]
    if "trial" in line:
        parts.append(str(line["trial"]))
    if "stage" in line:
        parts.append(str(line["stage"]))
    if "epoch" in line:
        parts.append(f"epoch {line['epoch']}")
    if "node" in line:
        parts.append(f"on {line['node']}")
    if "status" in line:
        parts.append(str(line["status"]))
    if "seconds" in line:
        parts.append(f"{line['seconds']:.1f} s")
    numbers = line.get("numbers") or {}
    parts += [f"{name} {value:.4f}" for name, value in list(numbers.items())[:4]]
    if "score" in line:
        parts.append(f"score {line['score']:.4f}")
    if "message" in line:
        parts.append(str(line["message"]))
    mark = "" if line.get("level") in ("info", None) else f"{str(line['level']).upper()}: "
    return mark + ", ".join(parts)


def _remove_old(folder: Path) -> None:
    for path in sorted(folder.glob("*.jsonl"))[:-KEPT_RUNS]:
        path.unlink(missing_ok=True)


NODE = "node"
"""Key of an epoch's report: the node that trained it. An epoch from a journal has none."""


class TrialLog:
    """Logs the events of a sweep. Repeated events of an earlier process are not logged as new."""

    def __init__(self, log: RunLog) -> None:
        self._log = log
        self._nodes: dict[str, str] = {}

    def on_epoch(self, spec: TrialSpec, epoch: Mapping[str, Any]) -> None:
        """Logs an epoch, unless it is repeated from a journal."""
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
        """Logs the end of a trial, now or in an earlier process."""
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
    """Returns a listener that calls several, one after the other."""

    def call(*event: Any) -> None:
        for listener in listeners:
            listener(*event)

    return call


def _describe(spec: TrialSpec) -> dict[str, Any]:
    return {"trial": spec.trial_id, "arm": spec.arm, "seed": spec.config.seed}
