"""A trial that only waits, for clusters larger than this machine: light, without torch."""

import json
import os
import time
from pathlib import Path
from typing import Any

PLAN_FILE = "stub_plan.json"
"""Beside the trials: how long each takes, and how many run at once."""
WORKERS_FOLDER = "stub_workers"
"""Beside the trials: a file for each worker that is up."""
TIMES_FILE = "times.json"
"""In a trial's folder: when it began and ended; a worker's first one has none."""
LONGEST_WAIT_SECONDS = 300.0

_is_up = False
"""Whether this worker has waited for the others."""


def run_stub_trial(config: dict[str, Any]) -> None:
    """Takes the time of a trial, reports its epochs and leaves its files, as a real one does."""
    from ray import tune

    order = json.loads(config["order"])
    folder, epochs = Path(order["folder"]), order["spec"]["config"]["training"]["epochs"]
    plan = json.loads((folder.parents[1] / PLAN_FILE).read_text(encoding="ascii"))
    is_first = _meet_workers(folder.parents[1] / WORKERS_FOLDER, **plan)
    seconds, began = 0.0 if is_first else plan["seconds"], time.time()
    for number in range(1, epochs + 1):
        # Against the clock, so that what reporting takes does not make the trial longer.
        time.sleep(max(0.0, began + seconds * number / epochs - time.time()))
        report = _make_report(number, epochs, seconds)
        with open(folder / "epochs.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(report) + "\n")
        if number == epochs:
            _write_end(folder, report, None if is_first else began)
        tune.report({"epoch": number, "epoch_reports": json.dumps([{**report, "node": "stub"}])})


def _meet_workers(folder: Path, *, nodes: int, seconds: float) -> bool:
    """Waits in a worker's first trial until all are up; returns whether it was that.

    They go on one after the other within the length of a trial, as trials of different length do.
    """
    global _is_up
    if _is_up:
        return False
    _is_up, deadline = True, time.time() + LONGEST_WAIT_SECONDS
    (folder / str(os.getpid())).touch()
    while len(up := sorted(os.listdir(folder))) < nodes and time.time() < deadline:
        time.sleep(0.5)
    time.sleep(seconds * up.index(str(os.getpid())) / len(up))
    return True


def _make_report(number: int, epochs: int, seconds: float) -> dict[str, Any]:
    return {
        "epoch": number,
        "num_epochs": epochs,
        "train_loss": 1.0 / number,
        "active_fraction": None,
        "diagnostics": {"positive_similarity": 0.5, "negative_similarity": 0.1},
        "learning_rates": {"trunk": 1e-3, "head": 1e-3, "proxies": 1e-2},
        "images_per_second": 1000.0,
        "train_seconds": seconds / epochs,
        "peak_memory_mib": 0.0,
        "validation": {f"recall_at_{k}": 0.5 for k in (1, 2, 4, 8)} | {"map_at_r": 0.3},
        "tables": {},
    }


def _write_end(folder: Path, report: dict[str, Any], began: float | None) -> None:
    if began is not None:
        times = {"began": began, "ended": time.time()}
        (folder / TIMES_FILE).write_text(json.dumps(times), encoding="ascii")
    result = {
        "outcome": "finished",
        "reason": "",
        "epoch": report["epoch"],
        "step": None,
        "best_epoch": report["epoch"],
        "best_score": report["validation"]["map_at_r"],
        "validation": report["validation"],
        "train_seconds": report["train_seconds"] * report["epoch"],
    }
    (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
