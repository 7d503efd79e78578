"""A trial that only waits and does not import torch, for clusters larger than this machine."""

import json
import os
import time
from pathlib import Path
from typing import Any

PLAN_FILE = "stub_plan.json"
"""File beside the trials: length of a trial, and number of concurrent trials."""
WORKERS_FOLDER = "stub_workers"
"""Folder beside the trials: a file for each worker that is up."""
TIMES_FILE = "times.json"
"""File in a trial's folder: its begin and end; the first trial of a worker has none."""
LONGEST_WAIT_SECONDS = 300.0

_is_up = False
"""Whether this worker has waited for the others."""


def run_stub_trial(config: dict[str, Any]) -> None:
    """Waits, reports epochs and writes the files of a real trial."""
    from ray import tune

    job = json.loads(config["job"])
    folder, epochs = Path(job["store"]) / job["key"], job["spec"]["config"]["training"]["epochs"]
    plan = json.loads((folder.parents[1] / PLAN_FILE).read_text(encoding="ascii"))
    is_first = _meet_workers(folder.parents[1] / WORKERS_FOLDER, **plan)
    seconds, began = 0.0 if is_first else plan["seconds"], time.time()
    for number in range(1, epochs + 1):
        # Waits for absolute times, so that reporting does not lengthen the trial.
        time.sleep(max(0.0, began + seconds * number / epochs - time.time()))
        report = _make_report(number, epochs, seconds)
        with open(folder / "epochs.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(report) + "\n")
        if number == epochs:
            _write_end(folder, report, None if is_first else began)
        tune.report({"epoch": number, "epoch_reports": json.dumps([{**report, "node": "stub"}])})


def _meet_workers(folder: Path, *, nodes: int, seconds: float) -> bool:
    """Waits in the first trial of a worker until all are up; returns whether it was the first.

    The workers continue at different times within the length of a trial, as with real trials.
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
