"""Runs that a Ray cluster conducts itself: handed over by Ray Jobs, followed, stopped.

The driver runs on the cluster's head in a folder that has the project, so that the machine that
submitted it may be switched off.
"""

import asyncio
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tasks.study import CONDUCTED
from tasks.sweep.cluster import check_token

if TYPE_CHECKING:
    from ray.job_submission import JobDetails

STUDIES = "dml_studies"
"""Key of a job's metadata with the names of its studies."""
ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
STOP_SECONDS = 60
"""Time of a stopped run to save its progress, before Ray kills it."""
_SECONDS_BETWEEN_LOOKS = 0.3
_NO_AGENT = "No available agent"
"""In Ray's message from a head whose agent for jobs does not run yet."""
_AGENT_SECONDS = 60
_VARIABLES = {
    CONDUCTED: "1",
    # As Ctrl-C: a run's private Prefect server ignores it, and hears from the run how it ended.
    "RAY_JOB_STOP_SIGNAL": "SIGINT",
    "RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS),
}


class ClusterRefuses(ValueError):
    """The cluster does not answer or does not accept us; the message has the remedy."""


@dataclass(frozen=True)
class SubmittedRun:
    """A run on the cluster at one moment."""

    job: str
    """Its name in Ray."""
    studies: tuple[str, ...]
    status: str
    """PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED."""
    message: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether it has ended in any way."""
        return self.status in ENDED


class JobClient:
    """The jobs of one cluster that run studies of ours."""

    def __init__(self, address: str) -> None:
        """Connects to the dashboard of a cluster's head, such as http://head:8265.

        Raises:
            ClusterRefuses: if there is none, or the token is missing or wrong.
        """
        if not address.startswith(("http://", "https://")):
            raise ClusterRefuses(
                "--address must be that of the head's dashboard, as in http://head:8265. Got "
                f"{address!r}."
            )
        self.address = address
        check_token()
        # Ray reads the mode when it is imported.
        if "ray" not in sys.modules:
            os.environ.setdefault("RAY_AUTH_MODE", "token")
        from ray.job_submission import JobSubmissionClient

        with _explained(address):
            self._client: JobSubmissionClient = JobSubmissionClient(address)
            # The version is open to all; this requires the token.
            self._client.list_jobs()

    def submit(self, command: Sequence[str], *, studies: Sequence[str], folder: str) -> str:
        """Starts a command in a folder of the head, and returns the name of its job.

        Raises:
            ValueError: if a run of one of the studies works there already.
        """
        for run in self._list():
            if not run.has_ended and (shared := set(run.studies) & set(studies)):
                raise ValueError(
                    f"{', '.join(sorted(shared))} runs on the cluster already, as {run.job}. "
                    f"Follow it: dml logs {run.studies[0]} --address {self.address} --follow. Stop "
                    f"it: dml stop {run.studies[0]} --address {self.address}"
                )
        name = f"dml-{studies[0]}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
        with _explained(self.address):
            return self._start_job(name, _make_entrypoint(command, folder), studies)

    def _start_job(self, name: str, entrypoint: str, studies: Sequence[str]) -> str:
        """Submits a job; a head that has just started first needs some seconds for its agent."""
        deadline = time.monotonic() + _AGENT_SECONDS
        while True:
            try:
                return self._client.submit_job(
                    entrypoint=entrypoint,
                    submission_id=name,
                    runtime_env={"env_vars": _VARIABLES},
                    metadata={STUDIES: " ".join(studies)},
                )
            except RuntimeError as error:
                if _NO_AGENT not in str(error) or time.monotonic() > deadline:
                    raise
            time.sleep(1)

    def find(self, study: str) -> SubmittedRun:
        """Returns the newest run of a study.

        Raises:
            ValueError: if the cluster knows none; with the studies that it knows.
        """
        runs = self._list()
        for run in runs:
            if study in run.studies:
                return run
        known = sorted({name for run in runs for name in run.studies})
        raise ValueError(
            f"no run of {study} was submitted to the cluster at {self.address}. Submitted were: "
            f"{', '.join(known) or 'none'}."
        )

    def read(self, job: str) -> SubmittedRun:
        """Returns the present state of a run."""
        with _explained(self.address):
            return _describe(self._client.get_job_info(job))

    def wait(
        self, job: str, until: Callable[[SubmittedRun], bool], *, seconds: float
    ) -> SubmittedRun:
        """Returns a run as soon as a condition holds, or as it is when the time is over."""
        deadline = time.monotonic() + seconds
        while not until(run := self.read(job)) and time.monotonic() < deadline:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        return run

    def read_log(self, job: str) -> str:
        """Returns everything that a run has printed."""
        with _explained(self.address):
            return str(self._client.get_job_logs(job))

    def follow_log(self, job: str, on_text: Callable[[str], None]) -> None:
        """Passes on everything that a run prints, until it ends."""

        async def follow() -> None:
            async for text in self._client.tail_job_logs(job):
                on_text(text)

        with _explained(self.address):
            asyncio.run(follow())

    def stop(self, job: str) -> SubmittedRun:
        """Ends a run as Ctrl-C does; waits until it has saved its progress."""
        with _explained(self.address):
            self._client.stop_job(job)
        return self.wait(job, lambda run: run.has_ended, seconds=STOP_SECONDS + 30)

    def _list(self) -> list[SubmittedRun]:
        """Returns our runs, the newest first."""
        with _explained(self.address):
            jobs: Iterable[JobDetails] = self._client.list_jobs()
        ours = [job for job in jobs if STUDIES in (job.metadata or {})]
        ours.sort(key=lambda job: job.start_time or 0, reverse=True)
        return [_describe(job) for job in ours]


def _make_entrypoint(command: Sequence[str], folder: str) -> str:
    place = shlex.quote(folder)
    problem = shlex.quote(
        f"dml: the head of the cluster has no folder {folder}. Clone the project there, or let "
        "--folder name the one that has it."
    )
    return f"cd {place} 2>/dev/null || {{ echo {problem}; exit 2; }}; exec {shlex.join(command)}"


def _describe(job: Any) -> SubmittedRun:
    return SubmittedRun(
        job=str(job.submission_id),
        studies=tuple((job.metadata or {}).get(STUDIES, "").split()),
        status=str(getattr(job.status, "value", job.status)),
        message=str(job.message or ""),
    )


@contextmanager
def _explained(address: str) -> Iterator[None]:
    """Turns errors of Ray's client into a message that says what to do."""
    from ray.exceptions import AuthenticationError

    try:
        yield
    except AuthenticationError as error:
        found = "refuses the token" if "failed" in str(error) else "requires a token"
        raise ClusterRefuses(
            f"the Ray cluster at {address} {found}. Let RAY_AUTH_TOKEN_PATH name the file with the "
            "cluster's own token."
        ) from error
    except (ConnectionError, OSError) as error:
        raise ClusterRefuses(
            f"no Ray cluster answers at {address}. --address must be that of the head's dashboard "
            "(port 8265); through a firewall use a tunnel: ssh -N -L 8265:127.0.0.1:8265 head. "
            f"Got: {_first_line(error)}"
        ) from error
    except RuntimeError as error:
        raise ClusterRefuses(f"the Ray cluster at {address}: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
