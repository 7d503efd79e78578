"""From the start of a run to its first epoch, and from its last epoch to the answer."""

import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks.pipeline import TINY
from benchmarks.plain_runs import run_script
from benchmarks.projects import DML, Project, make_environment, open_served_project
from benchmarks.rows import Row, make_row
from flows.servers.connect import choose_mlflow, choose_prefect
from flows.servers.record import load_records

GROUP = "scale"
ROUNDS = 2
STUDY = "epoch"


def measure_ends() -> list[Row]:
    """Returns the rows of a run's start and end; both sides use the same running servers."""
    project = open_served_project()
    # The first of ours prepares the data, and the first of each reads its files from the disk.
    ours, theirs, answered = zip(
        *[
            (_time_ours(project, n), _time_theirs(project), _time_answered(project))
            for n in range(ROUNDS + 1)
        ][1:],
        strict=True,
    )
    against = "Ray Tune, torch and a flow of Prefect alone"
    return [
        make_row(
            GROUP,
            "start to first epoch",
            ours=[start for start, _ in ours],
            theirs=[start for start, _ in theirs],
            target=1.3,
            unit="s",
            against=against,
            note="dml run with servers up, tiny trials",
        ),
        make_row(
            GROUP,
            "last epoch to answer",
            ours=[end for _, end in ours],
            theirs=[end for _, end in theirs],
            target=1.3,
            unit="s",
            against=against,
            note="ours evaluates 2 winners, records them in MLflow and DVC, and draws the report; "
            "the bare side does none of it",
        ),
        make_row(
            GROUP,
            "last epoch to answer, both with an answer",
            ours=[end for _, end in ours],
            theirs=[end for _, end in answered],
            target=1.3,
            unit="s",
            against=f"{against}, with a plain evaluation, MLflow, a figure and `dvc add`",
            note="both evaluate 2 models, record them, register one and add the files to DVC; "
            "ours also repairs the record, exports the model without its code, maps the "
            "embeddings, and writes a page and four stages of dvc.lock",
        ),
    ]


def _make_study(number: int) -> dict[str, Any]:
    rate = 0.001 * (1 + number / 100)
    return {
        "question": "How long until the first epoch?",
        "arms": {f"rate{n}": {"optimizer.learning_rate": rate * n} for n in (1, 2)},
        "fixed": {**TINY, "training.epochs": 1},
        "seeds": [0],
        "figure": {"kind": "bar", "x": "arm", "y": "test.recall_at_1"},
    }


def _time_ours(project: Project, number: int) -> tuple[float, float]:
    # A changed study, since --force would also draw the prepared images again.
    project.write_study(STUDY, _make_study(number))
    results = project.folder / "results"
    for name in (".sweeps", ".trials"):
        shutil.rmtree(results / name, ignore_errors=True)
    started = time.time()
    project.run("run", STUDY, "--json")
    ended = time.time()
    epochs = [path.stat().st_mtime for path in (results / ".trials").glob("*/epochs.jsonl")]
    return min(epochs) - started, ended - max(epochs)


def _time_theirs(project: Project) -> tuple[float, float]:
    records = load_records(project.folder)
    return _time_script("first_epoch", _make_folder(project), choose_prefect(records["prefect"]))


def _time_answered(project: Project) -> tuple[float, float]:
    folder, records = _make_folder(project), load_records(project.folder)
    servers = {**choose_prefect(records["prefect"]), **choose_mlflow(records["mlflow"])}
    for command in (["git", "init", "--quiet"], [str(DML.with_name("dvc")), "init", "--quiet"]):
        subprocess.run(command, cwd=folder, env=make_environment(folder), check=True)
    return _time_script("answered", folder, servers)


def _make_folder(project: Project) -> Path:
    folder = project.folder / "home" / "plain"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def _time_script(name: str, folder: Path, variables: dict[str, str]) -> tuple[float, float]:
    started = time.time()
    run = run_script(name, folder, variables=variables)
    first, last = run.result["first"], run.result["last"]
    return first - started, started + run.seconds - last
