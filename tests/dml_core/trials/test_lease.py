"""One driver at a time in a bucket; the lease of a dead one passes to the next."""

import subprocess
import sys
import time
import uuid

import pytest

from dml_core.trials import lease
from dml_core.trials.lease import LEASE_FILE, BucketInUse, Lease, held_lease
from dml_core.trials.objects import ObjectFolder
from tests.references.s3_servers import s3_bucket


@pytest.fixture(scope="module")
def bucket():
    with s3_bucket() as address:
        yield address


@pytest.fixture(autouse=True)
def short_times(monkeypatch):
    monkeypatch.setattr(lease, "LEASE_SECONDS", 1.5)
    monkeypatch.setattr(lease, "BEAT_SECONDS", 0.2)
    monkeypatch.setattr(lease, "_LOOK_SECONDS", 0.1)


@pytest.fixture(params=["memory", "s3"])
def location(request, bucket):
    root = bucket if request.param == "s3" else "memory://"
    return f"{root}/{uuid.uuid4().hex}"


def test_a_second_driver_is_refused_with_the_name_of_the_first(location):
    message = r"is in use by process \d+ on .+, since .+ choose another prefix"
    objects = ObjectFolder(location)
    with held_lease(objects), pytest.raises(BucketInUse, match=message), held_lease(objects):
        pytest.fail("two at once")
    with held_lease(objects):
        pass
    assert objects.read(LEASE_FILE) is None


def test_the_lease_of_a_driver_that_is_silent_is_taken_over_and_it_learns_that(
    location, monkeypatch
):
    objects = ObjectFolder(location)
    silent = Lease(objects)
    silent.take()
    started = time.monotonic()
    with held_lease(objects) as holder:
        assert time.monotonic() - started >= 1.5
        holder.check_now()
        silent.check()
        with pytest.raises(BucketInUse, match="was taken over by process"):
            silent.check_now()
        # Its release leaves the lease of the other.
        silent.release()
        holder.check_now()


KILLED = """
import os, signal, sys
from dml_core.trials.lease import held_lease
from dml_core.trials.objects import ObjectFolder
with held_lease(ObjectFolder(sys.argv[1])):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_driver_of_this_machine_that_was_killed_is_not_waited_for(bucket, monkeypatch):
    location = f"{bucket}/{uuid.uuid4().hex}"
    assert subprocess.run([sys.executable, "-c", KILLED, location], check=False).returncode == -9
    monkeypatch.setattr(lease, "LEASE_SECONDS", 3600.0)
    with held_lease(ObjectFolder(location)) as holder:
        holder.check_now()


REPLACED = """
import os, sys
from dml_core.trials.lease import held_lease
from dml_core.trials import lease as leases
from dml_core.trials.objects import ObjectFolder
leases.LEASE_SECONDS = 3600.0
with held_lease(ObjectFolder(sys.argv[1])) as lease:
    if len(sys.argv) == 3:
        os.execv(sys.executable, [sys.executable, "-c", sys.argv[2], sys.argv[1]])
    lease.check_now()
"""


def test_a_command_that_restarts_in_its_own_process_need_not_wait(tmp_path):
    location = f"file://{tmp_path}/bucket"
    command = [sys.executable, "-c", REPLACED, location, REPLACED]
    assert subprocess.run(command, timeout=600, check=False).returncode == 0
    assert ObjectFolder(location).read(LEASE_FILE) is None


def test_of_two_that_take_over_one_wins(bucket):
    location = f"{bucket}/{uuid.uuid4().hex}"
    objects = ObjectFolder(location)
    assert objects.create(LEASE_FILE, b"{}")
    assert not objects.create(LEASE_FILE, b"other")
    tag = objects.find_tag(LEASE_FILE)
    assert objects.replace(LEASE_FILE, b"first", tag=tag)
    assert not objects.replace(LEASE_FILE, b"second", tag=tag)
    assert objects.read(LEASE_FILE) == b"first"
