"""The bucket of sweep.storage: it answers, and this machine may do there what a sweep does."""

import secrets

from dml_core.trials.objects import BucketRefused, ObjectFolder
from flows.doctor.probes import DoctorRequest, Finding, broken, first_line, ok
from tasks.study import load_context

CHECK_STORAGE = (
    "Check the address, the network and AWS_ENDPOINT_URL. The credentials must allow listing, "
    "reading, writing and deleting below it"
)
_WAITING_SHARE = 0.2
"""Fraction of the time for each of the requests below."""


def probe(request: DoctorRequest) -> list[Finding]:
    """Writes, reads, lists and removes an object; nothing is done without sweep.storage."""
    location = load_context(request.study).project.pipeline.sweep.storage
    if not location:
        return [
            ok("storage", "sweep.storage is not set; trials are files below sweep.results_root")
        ]
    return [check_storage(location, limit_seconds=request.timeout_seconds * _WAITING_SHARE)]


def check_storage(location: str, *, limit_seconds: float) -> Finding:
    """Checks that a sweep can use an address."""
    name, content = f"doctor-{secrets.token_hex(4)}", b"may be removed"
    where = f"sweep.storage={location}"
    try:
        objects = ObjectFolder(location).impatient(limit_seconds)
        objects.write(name, content)
        has_read, has_listed = objects.read(name) == content, name in objects.list_objects("")
        objects.remove([name])
    except BucketRefused as error:
        problem, _, remedy = str(error).partition(". ")
        return broken("storage", problem, remedy or CHECK_STORAGE)
    # Each kind of storage raises the errors of its own library.
    except Exception as error:
        return broken("storage", f"{where} cannot be used: {first_line(error)}", CHECK_STORAGE)
    if not has_read or not has_listed:
        return broken("storage", f"{where} lacks an object that was just written", CHECK_STORAGE)
    return ok("storage", f"{where} answers and can be written to")
