"""The request for a study, its parsed definition, its folders, and the seconds of its stages."""

import hashlib
import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from dml_core.config import ConfigError
from dml_core.config.data import DataBase
from dml_core.config.loading import ProjectConfig, load_project_config
from dml_core.config.problems import suggest
from dml_core.config.yaml_files import read_yaml_text
from dml_core.data.prepared import open_development
from dml_core.data.records import DatasetError
from dml_core.studies.added_seeds import read_added
from dml_core.studies.arm_checks import TrainingSize
from dml_core.studies.definition import NAME_PATTERN
from dml_core.studies.loading import check_batches, is_file_itself, load_study
from dml_core.studies.resolved import ResolvedStudy

STUDIES_FOLDER = Path("studies")
CONDUCTED = "DML_CONDUCTED_BY_CLUSTER"
"""Environment variable of a run that `dml submit` handed to a cluster."""
SEEDS_SUFFIX = ".seeds.json"


class StudyRequest(BaseModel):
    """Which study to run, as a deployment or a command line names it."""

    model_config = ConfigDict(frozen=True)

    study: str
    """Name of a file in studies/, without its suffix."""
    profile: str | None = None
    """Another size of the same study, such as smoke."""
    params: str = "params.yaml"
    """The parameters that the study overrides."""
    overrides: tuple[str, ...] = ()
    """`key=value`, which override the study's."""
    params_text: str | None = Field(default=None, repr=False)
    """Content of params.yaml when the run began; None reads the file."""
    study_text: str | None = Field(default=None, repr=False)
    """Content of the study's file when the run began; None reads the file."""
    seeds_text: str | None = Field(default=None, repr=False)
    """Content of the file of added seeds when the run or its last look began, empty if there is
    none; None reads the file."""

    @property
    def folder_name(self) -> str:
        """Name of the study's folders; each profile and each set of overrides has its own."""
        parts = [self.study]
        # The profile that is the file itself has the folder of no profile.
        if self.profile and not is_file_itself(self.profile):
            parts.append(self.profile)
        if self.overrides:
            parts.append(hashlib.sha256("\n".join(self.overrides).encode()).hexdigest()[:8])
        return "@".join(parts)

    @property
    def seeds_path(self) -> Path:
        """The file of the seeds that `dml run --until-decided` has added."""
        return STUDIES_FOLDER / f"{self.folder_name}{SEEDS_SUFFIX}"


@dataclass(frozen=True)
class StudyContext:
    """A parsed and checked study, and the folders of its results."""

    request: StudyRequest
    project: ProjectConfig
    study: ResolvedStudy

    @property
    def datasets(self) -> list[DataBase]:
        """The datasets of the arms, without duplicates."""
        found = [self.study.arm_config(arm.name).data for arm in self.study.arms]
        return list({str(data.prepared_path): data for data in found}.values())

    @property
    def own_datasets(self) -> list[DataBase]:
        """The datasets that the study sets itself, instead of using that of params.yaml."""
        shared = self.project.trial.data.prepared_path
        return [data for data in self.datasets if data.prepared_path != shared]

    @property
    def working_folder(self) -> Path:
        """The study's own record of its trials; not versioned, so that a killed sweep resumes."""
        return self._results / ".sweeps" / self.request.folder_name

    @property
    def trials_folder(self) -> Path:
        """The journals of all trials, shared by all studies; not versioned."""
        return self._results / ".trials"

    @property
    def store_location(self) -> str:
        """The store of the journals: `trials_folder`, or the bucket of sweep.storage."""
        return self.project.pipeline.sweep.storage or str(self.trials_folder)

    @property
    def sweep_folder(self) -> Path:
        """The sweep's outputs: trials.parquet and the winners."""
        return self._results / self.request.folder_name / "sweep"

    @property
    def evaluate_folder(self) -> Path:
        """The evaluation's outputs: scores.json and the files about the best model."""
        return self._results / self.request.folder_name / "evaluate"

    @property
    def report_folder(self) -> Path:
        """The report."""
        return Path(self.project.pipeline.sweep.reports_root) / self.request.folder_name

    def name_raw(self, raw: str) -> str:
        """Returns the file and key, or the argument, that set data.raw to this value."""
        layers = [self.study.definition.fixed, *(arm.layer for arm in self.study.arms)]
        if "data.raw" in self.project.trial_overrides:
            return "--set data.raw"
        if any(layer.get("data.raw") == raw for layer in layers):
            return f"data.raw in {self.study.path}"
        return f"data.raw in {self.request.params}"

    @property
    def _results(self) -> Path:
        return Path(self.project.pipeline.sweep.results_root)


def pin_files(request: StudyRequest) -> StudyRequest:
    """Returns the request with the content of its files now, so that all stages use one version.

    A run takes minutes or days, and its files may be edited meanwhile.
    """
    texts = ("params_text", "study_text", "seeds_text")
    return _fill_texts(request.model_copy(update=dict.fromkeys(texts)))


def pin_seeds(request: StudyRequest) -> StudyRequest:
    """Returns the request with the added seeds of now; its other files stay those of its start."""
    return _fill_texts(request.model_copy(update={"seeds_text": None}))


def load_project(request: StudyRequest) -> ProjectConfig:
    """Returns the parameters of a request, without its study."""
    text = request.params_text
    text = read_yaml_text(Path(request.params)) if text is None else text
    return _parse_project(request.params, request.overrides, text)


def load_context(request: StudyRequest) -> StudyContext:
    """Returns the parsed study of a request; raises ConfigError with every problem it has.

    A process parses the same content once. A request without texts reads its files each time, and
    the data's sizes are checked each time, since a stage may have prepared them meanwhile.
    """
    filled = _fill_texts(request)
    if filled.study_text is None:
        check_study_exists(request.study)
    project, study = _parse_study(filled)
    context = StudyContext(request, _place(project), study)
    for data in context.datasets:
        if is_prepared(data):
            train = open_development(data).train
            check_batches(study, TrainingSize(train.num_classes, len(train)))
    return context


def _place(project: ProjectConfig) -> ProjectConfig:
    """Returns the parameters of a run that a cluster conducts: `local` means that cluster.

    Not an override, which would give the study another folder.
    """
    pipeline = project.pipeline
    if not os.environ.get(CONDUCTED) or pipeline.ray.address != "local":
        return project
    ray = pipeline.ray.model_copy(update={"address": "auto"})
    return replace(project, pipeline=pipeline.model_copy(update={"ray": ray}))


def _fill_texts(request: StudyRequest) -> StudyRequest:
    """Returns the request with the content of those files that it does not hold yet."""
    _check_name(request.study)
    texts = {}
    if request.params_text is None:
        texts["params_text"] = read_yaml_text(Path(request.params))
    # The stage that prepares the data runs without a study.
    if request.study_text is None and (path := _study_path(request)).exists():
        texts["study_text"] = read_yaml_text(path)
    if request.seeds_text is None:
        path = request.seeds_path
        texts["seeds_text"] = read_yaml_text(path) if path.exists() else ""
    return request.model_copy(update=texts)


@lru_cache(maxsize=64)
def _parse_project(params: str, overrides: tuple[str, ...], text: str) -> ProjectConfig:
    return load_project_config(Path(params), list(overrides), text=text)


@lru_cache(maxsize=64)
def _parse_study(request: StudyRequest) -> tuple[ProjectConfig, ResolvedStudy]:
    """Parses the texts of a request; failures are not cached."""
    project, path = load_project(request), _study_path(request)
    added = read_added(request.seeds_path, request.seeds_text or "")
    study = load_study(path, project, profile=request.profile, text=request.study_text, added=added)
    return project, study


def _study_path(request: StudyRequest) -> Path:
    return STUDIES_FOLDER / f"{request.study}.yaml"


def check_study_exists(study: str, folder: Path = STUDIES_FOLDER) -> None:
    """Raises UnknownStudy with the nearest name unless a folder has the file of a study."""
    if (folder / f"{study}.yaml").is_file():
        return
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    name, _, profile = study.partition("@")
    advice = suggest(study, known) or f" There are: {', '.join(known) or 'none'}."
    if profile and name in known:
        advice = f" A profile is an option: {name} --profile {profile}"
    raise UnknownStudy(f"there is no study {study!r} in {folder}/.{advice}")


class UnknownStudy(FileNotFoundError):
    """No file defines the study; the message has the nearest name."""


def _check_name(study: str) -> None:
    # Results are written to folders of this name, which are replaced.
    if not re.fullmatch(NAME_PATTERN, study):
        # It is no path, but a name with a profile.
        if "@" in study:
            check_study_exists(study)
        raise ConfigError(
            f"study {study!r}",
            [f"must be the name of a file in {STUDIES_FOLDER}/ without its ending, not a path."],
        )


def is_prepared(config: DataBase) -> bool:
    """Returns whether a dataset exists and was prepared with the values of the configuration."""
    try:
        open_development(config)
    except DatasetError:
        return False
    return True


SECONDS_FILE = "stage_seconds.json"


@contextmanager
def timed_stage(context: StudyContext, stage: str) -> Iterator[None]:
    """Writes the duration of the block to a file that DVC does not version.

    The report shows it; no score depends on it.
    """
    started = time.perf_counter()
    yield
    path = context.working_folder / SECONDS_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    seconds = {**read_stage_seconds(context), stage: time.perf_counter() - started}
    temporary = path.with_suffix(f".{os.getpid()}.partial")
    temporary.write_text(json.dumps(seconds, indent=2) + "\n", encoding="utf-8")
    os.replace(temporary, path)


def read_stage_seconds(context: StudyContext) -> dict[str, float]:
    """Returns the seconds by stage; empty where no stage ran on this machine."""
    path = context.working_folder / SECONDS_FILE
    if not path.is_file():
        return {}
    found: dict[str, float] = json.loads(path.read_text(encoding="utf-8"))
    return found
