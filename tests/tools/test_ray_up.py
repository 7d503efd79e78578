"""`ray up` over SSH to namespaces of this machine; needs root, sshd and rsync."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tools.hosts import NoNamespaces
from tools.ray_up import check_ssh

ROOT = Path(__file__).parents[2]
PROMISES = (
    "yes  ray up starts the head, and its autoscaler the worker, over SSH",
    "yes  dml doctor finds both nodes sound",
    "yes  after ray down no Ray is left",
)


def test_the_page_has_the_log_of_a_successful_run_and_no_local_path():
    page = (ROOT / "docs" / "ray-up.md").read_text(encoding="utf-8")
    assert all(f"\n{promise}\n" in page for promise in PROMISES)
    assert tempfile.gettempdir() not in page
    assert str(ROOT) not in page


@pytest.mark.nightly
@pytest.mark.integration
@pytest.mark.slow
def test_a_cluster_starts_and_ends_over_ssh():
    try:
        check_ssh()
    except NoNamespaces as error:
        pytest.skip(str(error))
    with tempfile.TemporaryDirectory(prefix="t-") as temporary:
        done = subprocess.run(
            [sys.executable, "-m", "tools.ray_up"],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": temporary},
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.splitlines()[-len(PROMISES) :] == list(PROMISES)
        assert os.listdir(temporary) == []
