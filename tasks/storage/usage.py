"""Measures what takes space: the files of each study by kind, and what studies share."""

import json
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from dml_core.config.loading import ProjectConfig
from dml_core.trials.ledger import FILE_NAME as LEDGER_FILE
from dml_core.trials.store import LOCKS_FOLDER
from tasks.report_page.answer import FILE_NAME as ANSWER_FILE
from tasks.report_page.comparison import FOLDER as COMPARISONS
from tasks.tracking.address import ARTIFACT_FOLDER, DATABASE_FILE

KINDS = ("trials", "record", "sweep", "evaluation", "report", "mlflow")
"""Kinds of a study's files: journals and checkpoints; the study's own record of its trials with its
logs; the winners; the test scores; the report; MLflow's artifacts."""
_KEY = re.compile(r'"key": ?"([0-9a-f]{16})"')
_SINGLE = "train"
"""The folder of single trainings, beside those of the studies."""


@dataclass
class StudyUsage:
    """The files of one study, and their bytes by kind."""

    name: str
    """Name of its folders, such as `main@smoke`."""
    sizes: dict[str, int] = field(default_factory=dict)
    """By kind; trials that other studies name too are not counted."""

    @property
    def total(self) -> int:
        """All bytes that are this study's alone."""
        return sum(self.sizes.values())


@dataclass(frozen=True)
class SharedUsage:
    """Files that belong to no single study."""

    what: str
    path: Path
    size: int


@dataclass(frozen=True)
class Usage:
    """What a project takes on disk."""

    studies: list[StudyUsage]
    shared: list[SharedUsage]

    @property
    def total(self) -> int:
        """All bytes."""
        return sum(each.total for each in self.studies) + sum(each.size for each in self.shared)


class Measure:
    """Adds up the disk space of files; a file with several names counts once."""

    def __init__(self) -> None:
        self._seen: set[tuple[int, int]] = set()

    def add(self, *paths: Path) -> int:
        """Returns the bytes of files and folders that no earlier call has counted."""
        return sum(self._add_one(path) for path in paths)

    def _add_one(self, path: Path) -> int:
        # A run may remove a file meanwhile.
        with suppress(OSError):
            if path.is_dir() and not path.is_symlink():
                with os.scandir(path) as entries:
                    return sum(self._add_one(Path(entry.path)) for entry in entries)
            facts = path.lstat()
            if (facts.st_dev, facts.st_ino) not in self._seen:
                self._seen.add((facts.st_dev, facts.st_ino))
                return facts.st_blocks * 512
        return 0


def read_ledgers(results: Path) -> dict[str, set[str]]:
    """Returns the keys of the trials that each study names, by the study's folder."""
    found = {}
    for path in sorted((results / ".sweeps").glob(f"*/{LEDGER_FILE}")):
        text = path.read_text(encoding="utf-8", errors="replace")
        found[path.parent.name] = set(_KEY.findall(text))
    return found


def list_study_folders(project: ProjectConfig) -> list[str]:
    """Returns the names of all studies that have files here, profiles and changes included."""
    results, reports = _roots(project)
    names = {path.name for path in (results / ".sweeps").glob("*") if path.is_dir()}
    names |= {path.parent.name for path in results.glob("*/sweep")}
    names |= {path.parent.name for path in results.glob("*/evaluate")}
    names |= {path.parent.name for path in reports.glob(f"*/{ANSWER_FILE}")}
    return sorted(name for name in names if name != _SINGLE and not name.startswith("."))


def list_paths(project: ProjectConfig, study: str, kind: str) -> list[Path]:
    """Returns the files and folders of a study; not those of trials and MLflow."""
    results, reports = _roots(project)
    places = {
        "record": results / ".sweeps" / study,
        "sweep": results / study / "sweep",
        "evaluation": results / study / "evaluate",
        "report": reports / study,
    }
    return [path for path in [places[kind]] if path.exists()]


def list_own_trials(
    results: Path, study: str, ledgers: Mapping[str, set[str]]
) -> tuple[list[Path], int]:
    """Returns the journals that no other study names, and how many others it shares."""
    named = ledgers.get(study, set())
    others = {key for name, keys in ledgers.items() if name != study for key in keys}
    own = [results / ".trials" / key for key in sorted(named - others)]
    return [path for path in own if path.is_dir()], len(named & others)


def measure_usage(project: ProjectConfig, folder: Path) -> Usage:
    """Returns the disk space of a project by study and kind, the largest first."""
    measure = Measure()
    results, _ = _roots(project)
    artifacts, ledgers = find_artifacts(folder), read_ledgers(results)
    studies = []
    for name in list_study_folders(project):
        usage = StudyUsage(name)
        usage.sizes["trials"] = measure.add(*list_own_trials(results, name, ledgers)[0])
        for kind in ("record", "sweep", "evaluation", "report"):
            usage.sizes[kind] = measure.add(*list_paths(project, name, kind))
        # Profiles of a study share its experiment; it is counted once, with the first of them.
        usage.sizes["mlflow"] = measure.add(*artifacts.get(name.partition("@")[0], []))
        studies.append(usage)
    shared = [
        SharedUsage(what, path, measure.add(path)) for what, path in _list_shared(project, folder)
    ]
    return Usage(
        sorted(studies, key=lambda each: -each.total),
        sorted((each for each in shared if each.size), key=lambda each: -each.size),
    )


def find_artifacts(folder: Path) -> dict[str, list[Path]]:
    """Returns the local folders of MLflow's artifacts by the name of their experiment.

    Reads the project's database; empty where there is none, as with a team's server.
    """
    database = folder / DATABASE_FILE
    if not database.is_file():
        return {}
    query = "select name, artifact_location from experiments"
    with suppress(sqlite3.Error):
        address = f"{database.resolve().as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True)) as opened:
            rows = opened.execute(query).fetchall()
        found = {name: [local] for name, text in rows if (local := to_local(text, folder))}
        return {name: paths for name, paths in found.items() if paths[0].is_dir()}
    return {}


def to_local(address: str, folder: Path) -> Path | None:
    """Returns the folder of an artifact's address; None where it is not among the project's own."""
    parts = urlsplit(address)
    path = Path(unquote(parts.path)) if parts.scheme in ("", "file") else None
    if path is None:
        return None
    own = (folder / ARTIFACT_FOLDER).resolve()
    place = (folder / path).resolve()
    return place if place.is_relative_to(own) and place != own else None


def _list_shared(project: ProjectConfig, folder: Path) -> Iterator[tuple[str, Path]]:
    results, reports = _roots(project)
    prepared = Path(project.trial.data.prepared_root)
    ledgers = read_ledgers(results)
    for key in _list_keys(results):
        count = sum(key in keys for keys in ledgers.values())
        what = "trials of several studies" if count > 1 else "trials that no study names"
        yield what, results / ".trials" / key
    yield "single trainings", results / _SINGLE
    for path in _list_folder(prepared):
        yield "prepared data", path
    yield "cached activations", prepared / ".activations"
    yield "raw data", folder / "data" / "raw"
    yield "comparisons", reports / COMPARISONS
    yield "DVC's cache", _find_cache(folder)
    yield "MLflow's database", folder / DATABASE_FILE
    yield "MLflow, others", folder / ARTIFACT_FOLDER
    for name in ("sources", "prefect", "logs"):
        yield f"state: {name}", folder / ".dml" / name


def _list_keys(results: Path) -> Iterable[str]:
    return [path.name for path in _list_folder(results / ".trials") if path.name != LOCKS_FOLDER]


def _list_folder(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(p for p in folder.iterdir() if p.is_dir() and p.name != ".activations")


def _find_cache(folder: Path) -> Path:
    """Returns the folder of DVC's cache; another than the default is in its settings."""
    for name in ("config.local", "config"):
        path = folder / ".dvc" / name
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if found := re.search(r"^\[cache\][^\[]*?^\s*dir\s*=\s*(\S+)", text, re.M | re.S):
            return (folder / ".dvc" / found[1]).resolve()
    return folder / ".dvc" / "cache"


def _roots(project: ProjectConfig) -> tuple[Path, Path]:
    sweep = project.pipeline.sweep
    return Path(sweep.results_root), Path(sweep.reports_root)


def join_shared(usage: Usage) -> list[SharedUsage]:
    """Returns the shared files with those of one kind together, such as trials."""
    joined: dict[str, SharedUsage] = {}
    for each in usage.shared:
        known = joined.get(each.what)
        place = each.path if known is None else known.path.parent
        size = each.size + (known.size if known else 0)
        joined[each.what] = SharedUsage(each.what, place, size)
    return sorted(joined.values(), key=lambda each: -each.size)


def to_json(usage: Usage) -> str:
    """Returns the usage for machines: bytes by study and kind, and what is shared."""
    content = {
        "studies": {each.name: each.sizes for each in usage.studies},
        "shared": [
            {"what": each.what, "path": str(each.path), "bytes": each.size}
            for each in join_shared(usage)
        ],
        "total": usage.total,
    }
    return json.dumps(content, indent=2)
