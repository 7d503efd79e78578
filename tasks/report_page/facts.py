"""What it takes to make a report again: command, commit, hashes, versions, seconds."""

import json
import platform
import shlex
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from dml_core.data.duplicates import ACROSS_SPLITS, describe_leaks
from dml_core.data.prepared_info import load_info
from dml_core.data.records import DatasetError
from dml_core.measures.scores import StudyScores
from dml_core.trials.table import read_trials
from tasks.study import StudyContext, StudyRequest, read_stage_seconds

_WRITTEN_BY_RUNS = ("dvc.lock", "studies/tracked.json")
"""What a run changes itself, and no number comes from."""
PACKAGES = {"torch": "torch", "faiss": "faiss-cpu", "dml": "dml"}


@dataclass(frozen=True)
class Fact:
    """One line of how to reproduce a report."""

    name: str
    value: str


def collect_facts(context: StudyContext, scores: StudyScores) -> list[Fact]:
    """Returns all that a reader needs to make the same numbers again."""
    sweep = json.loads((context.sweep_folder / "sweep.json").read_text(encoding="utf-8"))
    versions = ", ".join(f"{name} {value}" for name, value in read_versions().items())
    facts = [
        Fact("command", make_command(context.request)),
        Fact("git commit", describe_commit(Path())),
        Fact("data hash", scores.data_hash),
        Fact("split hash", scores.split_hash),
        Fact("leakage", describe_leakage(context)),
        Fact("study digest", scores.digest),
        Fact("training code", str(sweep.get("code", ""))),
        Fact("versions", versions),
        Fact("training", describe_training(context.sweep_folder / "trials.parquet")),
        Fact("wall clock", describe_seconds(read_stage_seconds(context))),
    ]
    return [fact for fact in facts if fact.value]


def describe_leakage(context: StudyContext) -> str:
    """Returns which images the data's splits share; empty for none, and without the data."""
    parts = []
    for config in context.datasets:
        try:
            found = load_info(config.prepared_path).duplicates
        except DatasetError:
            continue
        if not found:
            continue
        alike = (found["alike"] or {}).get(ACROSS_SPLITS, 0)
        texts = [describe_leaks(found)] if found["equal"][ACROSS_SPLITS] else []
        texts += [f"{alike:,} pairs look alike across splits"] if alike else []
        parts += [f"{config.folder_name}: {text}" for text in texts]
    return "; ".join(parts)


def make_command(request: StudyRequest) -> str:
    """Returns the command line that makes this report."""
    parts = ["dml", "run", request.study]
    if request.profile:
        parts += ["--profile", request.profile]
    if request.params != "params.yaml":
        parts += ["--params", request.params]
    for assignment in request.overrides:
        parts += ["--set", assignment]
    return shlex.join(parts)


def describe_commit(project: Path) -> str:
    """Returns the commit of the code, with a word on changes beside it; empty without git."""
    commit = _ask_git(project, "rev-parse", "--short=12", "HEAD")
    if not commit:
        return ""
    others = [f":(exclude){name}" for name in _WRITTEN_BY_RUNS]
    status = ("status", "--porcelain", "--untracked-files=no", "--", ".", *others)
    is_changed = bool(_ask_git(project, *status))
    return f"{commit} with changes that are not committed" if is_changed else commit


def read_versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that numbers come from."""
    found = {"python": platform.python_version()}
    for name, package in PACKAGES.items():
        try:
            found[name] = version(package)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def describe_training(trials: Path) -> str:
    """Returns how many trainings there were and how long they took together."""
    if not trials.is_file():
        return ""
    records = read_trials(trials)
    seconds = sum(record.train_seconds for record in records)
    return f"{len(records)} trials, {seconds:,.0f} s of training altogether"


def describe_seconds(seconds: dict[str, float]) -> str:
    """Returns how long each stage took when it last ran, and all of them together."""
    if not seconds:
        return ""
    listed = ", ".join(f"{stage} {value:,.0f} s" for stage, value in seconds.items())
    return f"{sum(seconds.values()):,.0f} s ({listed})"


def _ask_git(project: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(project), *arguments], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
