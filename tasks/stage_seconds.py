"""Remembers how long each stage of a study took when it last ran."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tasks.context import StudyContext

FILE_NAME = "stage_seconds.json"


@contextmanager
def timed_stage(context: StudyContext, stage: str) -> Iterator[None]:
    """Writes the seconds of the block beside the trials, where DVC does not look.

    They tell a reader what to expect; no number of a study depends on them.
    """
    started = time.perf_counter()
    yield
    path = _path(context)
    path.parent.mkdir(parents=True, exist_ok=True)
    seconds = {**read_stage_seconds(context), stage: time.perf_counter() - started}
    temporary = path.with_suffix(f".{os.getpid()}.partial")
    temporary.write_text(json.dumps(seconds, indent=2) + "\n", encoding="utf-8")
    os.replace(temporary, path)


def read_stage_seconds(context: StudyContext) -> dict[str, float]:
    """Returns the seconds by stage; empty where no stage ran on this machine."""
    path = _path(context)
    if not path.is_file():
        return {}
    found: dict[str, float] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _path(context: StudyContext) -> Path:
    return context.working_folder / FILE_NAME
