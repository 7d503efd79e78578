"""How a study is run: on which cluster, with which budget, recorded where."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field

from dml_core.config.section import Section


class RayConfig(Section):
    """Where trials run."""

    address: str = Field(default="local", pattern=r"^(local|auto|(ray://)?[\w.\-]+:\d+)$")
    """local starts a cluster on this machine for the sweep; auto joins the one that this machine
    belongs to; host:port joins another."""
    cpus_per_trial: float = Field(default=1.0, gt=0, le=1024)
    """Logical CPUs of each worker of a trial."""
    gpus_per_trial: float = Field(default=0.0, ge=0, le=64)
    """Logical GPUs of each worker of a trial; a half lets two share one."""
    max_concurrent: int = Field(default=0, ge=0)
    """Trials at once at the most; 0 takes what the cluster has room for."""
    connect_timeout_seconds: float = Field(default=15.0, gt=0)
    """How long to wait for a cluster that should be there."""


class SweepConfig(Section):
    """The budget and the search of a study, where the study itself does not say."""

    max_failed_fraction: float = Field(default=0.25, ge=0, le=1)
    """A sweep stops when a larger share of its trials failed by error (pruned, diverged and
    collapsed ones do not count)."""
    max_restarts: int = Field(default=3, ge=0)
    """How often a trial whose worker died, hung or got no more memory goes on from its last
    checkpoint."""
    trial_timeout_seconds: float = Field(default=0.0, ge=0)
    """A trial without a finished epoch for so long is ended and goes on from its last checkpoint,
    max_restarts times; then it has failed. 0 waits for ever."""
    timeout_seconds: float = Field(default=0.0, ge=0)
    """A sweep that has worked on the cluster for so long stops with an error, and the same command
    goes on where it stopped; 0 sets no limit, since how long a study may take is its own matter."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of the search. Not the trials' seed."""
    results_root: str = "results"
    """Folder that holds one folder for each study's results."""
    reports_root: str = "reports"
    """Folder that holds one folder for each study's report."""


def _check_has_no_password(address: str) -> str:
    """Refuses a password without repeating it: parameters are committed, printed and recorded."""
    if re.search(r"://[^/@]*:[^/@]*@", address):
        raise ValueError(
            "must not hold a password, since params.yaml is committed and --set is recorded. "
            "Leave it empty and set MLFLOW_TRACKING_URI in the environment, or keep the address "
            "here and set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD there"
        )
    return address


class MlflowConfig(Section):
    """The record that people compare."""

    # What pydantic says of a wrong value would be printed with the value.
    model_config = ConfigDict(hide_input_in_errors=True)

    tracking_uri: Annotated[str, AfterValidator(_check_has_no_password)] = ""
    """Address of the tracking server; empty takes MLFLOW_TRACKING_URI from the environment, and
    without that a sqlite file in this folder."""
    registered_model: str = "dml-{study}"
    """Name under which a study's winner is registered; {study} stands for its name."""
    alias: str = Field(default="champion", pattern=r"^[A-Za-z][\w-]*$")
    """Alias of the registered winner that counts: the first one's, until another is promoted."""
    promote: bool = False
    """Let a result that is significantly better than the accepted one take the alias by itself;
    otherwise it is proposed, and `dml run STUDY --promote` moves it."""
    timeout_seconds: float = Field(default=15.0, gt=0)
    """How long to wait for the tracking server before a run starts."""


class DataAccessConfig(Section):
    """How the nodes of a cluster come by the prepared data."""

    mode: Literal["shared", "dvc"] = "shared"
    """shared: every node sees data.prepared_root; dvc: a node that lacks the data fetches them
    once from the DVC remote by their hash."""
    remote: str = ""
    """Name of the DVC remote; empty takes the default one."""
    cache_root: str = "~/.cache/dml"
    """Folder on each node for data fetched there."""


class NotifyConfig(Section):
    """Who is told when a scheduled run fails."""

    block: str = Field(default="", pattern=r"^([a-z0-9-]+/[a-z0-9-]+)?$")
    """A block saved in Prefect, as type/name: webhook/team, slack-webhook/team, email and others;
    empty tells nobody."""


class PipelineConfig(Section):
    """Everything of params.yaml that is not of a single training."""

    ray: RayConfig = RayConfig()
    """Where trials run."""
    sweep: SweepConfig = SweepConfig()
    """The budget and the search."""
    mlflow: MlflowConfig = MlflowConfig()
    """The record."""
    data_access: DataAccessConfig = DataAccessConfig()
    """How the data get to the nodes."""
    notify: NotifyConfig = NotifyConfig()
    """Who is told of failures."""
