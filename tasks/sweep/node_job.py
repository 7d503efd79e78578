"""What a worker on any node needs to open the data of a configuration."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dml_core.config import TrialConfig
from dml_core.config.pipeline import DataAccessConfig
from dml_core.data.writing import DEVELOPMENT
from dml_core.trials.key import add_own_code, hash_training_code, read_libraries
from tasks.sweep.job import check_code
from tasks.sweep.node_data import DataSource, describe_data, provide_data, remember_sources


@dataclass(frozen=True)
class NodeJob:
    """A configuration whose data a worker opens, as plain values."""

    config: dict[str, Any]
    working_folder: str
    """Base of the configuration's relative paths, where a node has it."""
    data_version: str
    """`describe_data` of the driver's data, which a node must match; empty if unknown."""
    data_source: DataSource = field(default_factory=dict)
    """Where a node that lacks the data fetches them."""
    code: str = ""
    """Hash of the training code that the worker must have imported; empty for any."""
    libraries: dict[str, str] = field(default_factory=dict)
    """Versions that the worker must have, by library."""

    def place(self, part: str = DEVELOPMENT) -> TrialConfig:
        """Returns the configuration with the data's folder on this node; enters its project.

        Args:
            part: the images that are about to be read.

        Raises:
            OtherCode: when this process has other code or libraries than the driver.
        """
        if Path(self.working_folder).is_dir():
            os.chdir(self.working_folder)
        config = TrialConfig.model_validate(self.config)
        check_code(self.code, self.libraries, config)
        return provide_data(config, self.data_source, expected=self.data_version, part=part)


def node_jobs(access: DataAccessConfig) -> Callable[[TrialConfig], NodeJob]:
    """Returns a function that makes the job of a configuration; called on the driver."""
    working_folder, find_source = str(Path.cwd()), remember_sources(access)

    def make(config: TrialConfig) -> NodeJob:
        return NodeJob(
            config=config.model_dump(mode="json"),
            working_folder=working_folder,
            data_version=describe_data(config),
            data_source=find_source(config),
            code=add_own_code(hash_training_code(), config),
            libraries=read_libraries(),
        )

    return make
