"""What every stage of a study starts from: its definition, its folders and its times."""

import hashlib
import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from dml_core.config import ConfigError
from dml_core.config.data import DataBase
from dml_core.config.loading import ProjectConfig, load_project_config
from dml_core.config.yaml_files import read_yaml_text
from dml_core.data.prepared import open_development
from dml_core.data.records import DatasetError
from dml_core.studies.arm_checks import TrainingSize
from dml_core.studies.definition import NAME_PATTERN
from dml_core.studies.loading import check_batches, is_file_itself, load_study
from dml_core.studies.resolved import ResolvedStudy

STUDIES_FOLDER = Path("studies")


class StudyRequest(BaseModel):
    """Which study to run, as a deployment or a command line says it."""

    model_config = ConfigDict(frozen=True)

    study: str
    """Name of a file in studies/, without its ending."""
    profile: str | None = None
    """Another size of the same study, such as smoke."""
    params: str = "params.yaml"
    """The parameters below the study's."""
    overrides: tuple[str, ...] = ()
    """`key=value` above the study's."""
    params_text: str | None = Field(default=None, repr=False)
    """Content of the parameters' file when the run began; None reads the file."""
    study_text: str | None = Field(default=None, repr=False)
    """Content of the study's file when the run began; None reads the file."""

    @property
    def folder_name(self) -> str:
        """Name of the study's folders; each profile and each change by hand has its own."""
        parts = [self.study]
        # The file's own size lies where it lies without a name.
        if self.profile and not is_file_itself(self.profile):
            parts.append(self.profile)
        if self.overrides:
            parts.append(hashlib.sha256("\n".join(self.overrides).encode()).hexdigest()[:8])
        return "@".join(parts)


@dataclass(frozen=True)
class StudyContext:
    """A study that was read and checked, and where its results go."""

    request: StudyRequest
    project: ProjectConfig
    study: ResolvedStudy

    @property
    def datasets(self) -> list[DataBase]:
        """The dataset of each arm, every one once."""
        return list({str(data.prepared_path): data for data in _datasets_of(self.study)}.values())

    @property
    def own_datasets(self) -> list[DataBase]:
        """Those that the study sets itself, instead of taking the one of params.yaml."""
        shared = self.project.trial.data.prepared_path
        return [data for data in self.datasets if data.prepared_path != shared]

    @property
    def working_folder(self) -> Path:
        """Where trials run; not versioned, so that a killed sweep goes on."""
        return self._results / ".sweeps" / self.request.folder_name

    @property
    def sweep_folder(self) -> Path:
        """What the sweep leaves: trials.parquet and the winners."""
        return self._results / self.request.folder_name / "sweep"

    @property
    def evaluate_folder(self) -> Path:
        """What the evaluation leaves: scores.json."""
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
    """Returns the request with the content of its files, so that all stages use one version.

    A run takes minutes or days, and its files may be edited meanwhile.
    """
    _check_name(request.study)
    texts = {"params_text": read_yaml_text(Path(request.params))}
    # The stage that prepares the data runs without a study.
    if (path := _study_path(request)).exists():
        texts["study_text"] = read_yaml_text(path)
    return request.model_copy(update=texts)


def load_project(request: StudyRequest) -> ProjectConfig:
    """Returns the parameters of a request, without its study."""
    return load_project_config(
        Path(request.params), list(request.overrides), text=request.params_text
    )


def load_context(request: StudyRequest) -> StudyContext:
    """Reads parameters and study; every problem of either is reported before anything starts."""
    _check_name(request.study)
    project = load_project(request)
    study = load_study(
        _study_path(request), project, profile=request.profile, text=request.study_text
    )
    context = StudyContext(request, project, study)
    for data in context.datasets:
        if is_prepared(data):
            train = open_development(data).train
            check_batches(study, TrainingSize(train.num_classes, len(train)))
    return context


def _study_path(request: StudyRequest) -> Path:
    return STUDIES_FOLDER / f"{request.study}.yaml"


def _check_name(study: str) -> None:
    # Results are written to, and replaced in, folders of this name.
    if not re.fullmatch(NAME_PATTERN, study):
        raise ConfigError(
            f"study {study!r}",
            [f"must be the name of a file in {STUDIES_FOLDER}/ without its ending, not a path."],
        )


def is_prepared(config: DataBase) -> bool:
    """Tells whether a dataset is there and was prepared with the values of the configuration."""
    try:
        open_development(config)
    except DatasetError:
        return False
    return True


def _datasets_of(study: ResolvedStudy) -> list[DataBase]:
    return [study.arm_config(arm.name).data for arm in study.arms]


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
