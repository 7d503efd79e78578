"""What `dml doctor` was asked, as plain values that a probe's process can read."""

from pydantic import BaseModel, ConfigDict

from tasks.study import StudyRequest


class DoctorRequest(BaseModel):
    """Which plan to look at, and where the servers are."""

    model_config = ConfigDict(frozen=True)

    study: StudyRequest
    """Its plan says how much disk, memory and which data are needed."""
    timeout_seconds: float
    """How long a probe may take."""
    prefect_url: str = ""
    """API of the Prefect server; empty where a run brings its own."""
    prefect_source: str = ""
    """Where that address comes from, for messages."""
