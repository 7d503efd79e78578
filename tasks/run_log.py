"""One log for each run of a study: lines of JSON, which a program reads as easily as a person.

Every line has a time, a level, an event and the study; where it is about one, also the trial, its
arm, the node it runs on and the epoch. Secrets never get there: see tasks/redaction.py.
"""

import json
import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tasks.redaction import redact

FOLDER_NAME = "logs"
KEPT_RUNS = 50
"""Logs of older runs are removed when a new one begins."""
_LOGGERS = ("dml_core", "tasks", "flows")

_open: dict[Path, "RunLog"] = {}
"""The logs that this process writes now, by the folder of the study."""


class RunLog:
    """Appends lines; each is one write, so that a reader never sees half of one."""

    def __init__(self, path: Path, *, study: str) -> None:
        self.path = path
        self._study = study
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, event: str, *, level: str = "info", **fields: Any) -> None:
        """Adds a line; fields that are None or empty are left out."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        known = {key: value for key, value in fields.items() if value not in (None, "")}
        line = {"time": now, "level": level, "event": event, "study": self._study, **known}
        text = redact(json.dumps(line, default=str, ensure_ascii=False))
        # A full disk must not end a sweep that could go on without its log.
        with suppress(OSError):
            os.write(self._descriptor, text.encode() + b"\n")

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
        working_folder: where the study's trials run; its logs lie beside them.
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
        log.write("run failed", level="error", error=type(error).__name__, message=str(error))
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


def _remove_old(folder: Path) -> None:
    for path in sorted(folder.glob("*.jsonl"))[:-KEPT_RUNS]:
        path.unlink(missing_ok=True)
