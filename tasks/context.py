"""What every stage of a study starts from: its definition and its folders."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from dml_core.config import ConfigError
from dml_core.config.data import DataBase
from dml_core.config.loading import ProjectConfig, load_project_config
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

    @property
    def _results(self) -> Path:
        return Path(self.project.pipeline.sweep.results_root)


def load_context(request: StudyRequest) -> StudyContext:
    """Reads parameters and study; every problem of either is reported before anything starts."""
    _check_name(request.study)
    project = load_project_config(Path(request.params), list(request.overrides))
    study = load_study(STUDIES_FOLDER / f"{request.study}.yaml", project, profile=request.profile)
    context = StudyContext(request, project, study)
    for data in context.datasets:
        if is_prepared(data):
            train = open_development(data).train
            check_batches(study, TrainingSize(train.num_classes, len(train)))
    return context


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
