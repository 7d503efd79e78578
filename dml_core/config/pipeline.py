"""How a study runs: cluster, budget, tracking server, data access and notifications."""

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from dml_core.config.section import Section


class RayConfig(Section):
    """Where trials and evaluations run."""

    address: str = Field(default="local", pattern=r"^(local|auto|(ray://)?[\w.\-]+:\d+)$")
    """local starts a cluster on this machine for the run; auto joins the cluster of this machine;
    host:port joins another one."""
    cpus_per_trial: float = Field(default=1.0, gt=0, le=1024)
    """Logical CPUs of each worker of a trial, and of each task of an evaluation."""
    gpus_per_trial: float = Field(default=0.0, ge=0, le=64)
    """Logical GPUs of each worker of a trial, and of each task of an evaluation; 0.5 lets two
    workers share one GPU."""
    max_concurrent: int = Field(default=0, ge=0)
    """Maximum number of concurrent trials, or tasks of an evaluation; 0 uses the capacity of the
    cluster."""
    max_gpus: float = Field(default=0.0, ge=0)
    """Most GPUs that the concurrent trials of a sweep use together, so that a scheduled run leaves
    the others free; 0 sets no limit."""
    priority: int = Field(default=0, ge=-100, le=100)
    """Priority on a cluster that several sweeps share: a sweep starts no trial while trials of a
    sweep with a higher priority wait for room. Running trials are not interrupted. Has no effect
    with address=local."""
    elastic: bool = False
    """The cluster starts nodes when trials wait and stops idle ones (an autoscaler). A sweep then
    requests nodes for max_concurrent trials and waits for them, also where the cluster has none.
    Has no effect with address=local."""
    connect_timeout_seconds: float = Field(default=15.0, gt=0)
    """Timeout for connecting to a running cluster."""

    @model_validator(mode="after")
    def _check_elastic(self) -> Self:
        if self.elastic and not self.max_concurrent:
            raise ValueError(
                "ray.elastic=true needs ray.max_concurrent, the number of trials to request nodes "
                "for, since the capacity changes. Got 0"
            )
        return self


def _check_is_address(address: str) -> str:
    """Rejects what is no address, and credentials within one, without repeating them."""
    if address and not re.fullmatch(r"[a-z][a-z0-9+.\-]*://[^\s?#@]+", address):
        raise ValueError(
            "must be empty, or an address without credentials and arguments, such as "
            "s3://bucket/prefix. Credentials belong into the environment or the node's role, "
            "another endpoint into AWS_ENDPOINT_URL"
        )
    return address


class SweepConfig(Section):
    """Defaults for the budget and the search of a study."""

    # Pydantic would print the rejected value, which may hold a password.
    model_config = ConfigDict(hide_input_in_errors=True)

    max_failed_fraction: float = Field(default=0.25, ge=0, le=1)
    """A sweep stops if a larger share of its trials failed with an error; pruned, diverged and
    collapsed trials do not count."""
    max_restarts: int = Field(default=3, ge=0)
    """How often a trial resumes from its last checkpoint after its worker died, hung or ran out of
    memory. Workers that die before they begin the trial, as on a lost node, do not count."""
    trial_timeout_seconds: float = Field(default=0.0, ge=0)
    """A trial that finishes no epoch for this long is stopped and resumes from its last checkpoint,
    up to max_restarts times; then it fails. 0 sets no limit."""
    timeout_seconds: float = Field(default=0.0, ge=0)
    """A sweep that runs longer than this stops with an error; the same command resumes it. 0 sets
    no limit, because the duration depends on the study."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of the search. Not the trials' seed."""
    results_root: str = "results"
    """Folder with one subfolder for the results of each study."""
    reports_root: str = "reports"
    """Folder with one subfolder for the report of each study."""
    storage: Annotated[str, AfterValidator(_check_is_address)] = ""
    """Address of fsspec for journals, checkpoints and ledgers, such as s3://bucket/prefix, so that
    nodes and drivers need no shared folder; credentials come from the environment or the node's
    role. Empty keeps them in results_root."""


def _check_has_no_password(address: str) -> str:
    """Rejects a password without repeating it: parameters are committed, printed and recorded."""
    if re.search(r"://[^/@]*:[^/@]*@", address):
        raise ValueError(
            "must not hold a password, because params.yaml is committed and --set is recorded. "
            "Leave it empty and set MLFLOW_TRACKING_URI in the environment, or keep the address "
            "here and set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD there"
        )
    return address


class MlflowConfig(Section):
    """The MLflow tracking server and model registry."""

    # Pydantic would print the rejected value, which may hold a password.
    model_config = ConfigDict(hide_input_in_errors=True)

    tracking_uri: Annotated[str, AfterValidator(_check_has_no_password)] = ""
    """Address of the tracking server; empty uses MLFLOW_TRACKING_URI from the environment, or else
    a sqlite file in this folder."""
    registered_model: str = "dml-{study}"
    """Registered model name of a study's winner; {study} is replaced by the study's name."""
    alias: str = Field(default="champion", pattern=r"^[A-Za-z][\w-]*$")
    """Alias of the accepted winner: the first version, until another one is promoted."""
    promote: bool = False
    """Move the alias automatically to a result that is significantly better than the accepted one;
    otherwise the result is proposed, and `dml run STUDY --promote` moves the alias."""
    timeout_seconds: float = Field(default=15.0, gt=0)
    """Timeout for reaching the tracking server before a run starts."""


class DataAccessConfig(Section):
    """How the nodes of a cluster access the prepared data."""

    mode: Literal["shared", "dvc"] = "shared"
    """shared: every node reads data.prepared_root; dvc: a node without the data pulls them once
    from the DVC remote by their hash."""
    remote: str = ""
    """Name of the DVC remote; empty uses the default remote."""
    cache_root: str = "~/.cache/dml"
    """Folder on each node for the data pulled there."""


class NotifyConfig(Section):
    """Notification about failed scheduled runs."""

    block: str = Field(default="", pattern=r"^([a-z0-9-]+/[a-z0-9-]+)?$")
    """A saved Prefect block as type/name: webhook/team, slack-webhook/team, email and others; empty
    sends no notification."""


class PipelineConfig(Section):
    """The sections of params.yaml that do not belong to a single trial."""

    ray: RayConfig = RayConfig()
    """Where trials and evaluations run."""
    sweep: SweepConfig = SweepConfig()
    """The budget and the search."""
    mlflow: MlflowConfig = MlflowConfig()
    """The tracking server."""
    data_access: DataAccessConfig = DataAccessConfig()
    """How nodes access the data."""
    notify: NotifyConfig = NotifyConfig()
    """Notification about failures."""
