"""Joining clusters: none there, one of two nodes on this machine."""

import gc
import ipaddress
import json
import os
import stat
import subprocess
import sys
import time
import weakref
from pathlib import Path

import psutil
import pytest
import ray

from dml_core.config.pipeline import RayConfig
from tasks.sweep.cluster import RayUnreachable, check_token, connect, leave, make_runtime_env
from tests.references.ray_clusters import Cluster, free_port, two_nodes
from tests.references.tiny_trials import prepare_tiny

ROOT = Path(__file__).parents[3]


def test_a_cluster_that_is_not_there_is_named_with_what_to_do():
    address = f"127.0.0.1:{free_port()}"
    started = time.monotonic()
    config = RayConfig(address=address, connect_timeout_seconds=0.5)
    with (
        pytest.raises(RayUnreachable, match=f"ray.address={address} .*ray start --head"),
        connect(config),
    ):
        pytest.fail("there is nothing to join")
    assert time.monotonic() - started < 10


def test_no_reference_is_freed_by_the_garbage_collector_while_ray_shuts_down(monkeypatch):
    class Reference:
        """Stands for an ObjectRef: freed after Ray's core worker is gone, it ends the process."""

    kept = Reference()
    kept.cycle = kept
    freed_before, seen = weakref.ref(kept), []
    del kept
    # Stands for ray.shutdown: the moment itself cannot be hit on purpose.
    monkeypatch.setattr(ray, "shutdown", lambda: seen.append((freed_before(), gc.isenabled())))
    assert gc.isenabled()
    leave()
    assert seen == [(None, False)]
    assert gc.isenabled()


def test_a_client_connection_is_refused():
    with (
        pytest.raises(RayUnreachable, match=r"Got ray://somewhere:10001\. Run this command on"),
        connect(RayConfig(address="ray://somewhere:10001")),
    ):
        pytest.fail("a sweep cannot be led from a client")


def test_only_the_packages_are_shipped():
    environment = make_runtime_env()
    assert [Path(path).name for path in environment["py_modules"]] == ["dml_core", "tasks", "flows"]


def test_a_cluster_without_tokens_is_refused(monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with (
        pytest.raises(ValueError, match=r"RAY_AUTH_MODE=disabled lets anyone.*token"),
        connect(RayConfig(address="10.0.0.7:6379")),
    ):
        pytest.fail("it must not be joined")


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o644, True), (0o640, True)])
def test_a_token_that_others_can_read_is_warned_of(tmp_path, monkeypatch, caplog, mode, warned):
    token = tmp_path / "token"
    token.write_text("secret")
    token.chmod(mode)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    check_token()
    assert (f"chmod 600 {token}" in caplog.text) == warned


def test_the_flow_leaves_ray_to_be_imported_when_its_surroundings_are_set():
    code = "import sys, flows.ablation; print('ray' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


LOCAL = """
import os, stat, sys
from dml_core.config.pipeline import RayConfig
from tasks.sweep.cluster import connect, count_concurrent

def has_token(process, token):
    try:
        return process.environ().get("RAY_AUTH_TOKEN_PATH") == token
    except Exception:
        return False

with connect(RayConfig(cpus_per_trial=0.5, max_concurrent=3)):
    import ray
    token = os.environ["RAY_AUTH_TOKEN_PATH"]
    print(stat.filemode(os.stat(token).st_mode), count_concurrent(RayConfig(cpus_per_trial=0.5)))
    print(count_concurrent(RayConfig(cpus_per_trial=0.5, max_concurrent=1)))
    try:
        count_concurrent(RayConfig(gpus_per_trial=0.5))
    except ValueError as error:
        print(error)
    import psutil
    ours = [p.pid for p in psutil.process_iter() if has_token(p, token)]
    found = [c for c in psutil.net_connections("inet") if c.pid in ours and c.status == "LISTEN"]
    print(sorted({c.laddr.ip.removeprefix("::ffff:") for c in found}), len(ours) > 3)
print(ray.is_initialized())
"""


# A module that imports Ray early once opened the cluster to all addresses.
@pytest.mark.integration
@pytest.mark.parametrize("first", ["", "import ray\n"], ids=["", "ray imported first"])
def test_a_local_cluster_has_its_owners_token_stays_on_loopback_and_ends_with_the_block(first):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    run = subprocess.run(
        [sys.executable, "-c", first + LOCAL],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    cores = len(os.sched_getaffinity(0))
    assert lines[0] == f"{stat.filemode(stat.S_IFREG | 0o600)} {2 * cores}"
    assert lines[1] == "1"
    assert "ray.gpus_per_trial=0.5" in lines[2]
    assert "0 GPUs" in lines[2]
    assert lines[3] == "['127.0.0.1'] True"
    assert lines[4] == "False"
    assert "oken" not in run.stderr


DRIVER = """
import json, sys, time
from pathlib import Path
from tasks.sweep.cluster import connect
from tasks.sweep.run import run_sweep
from tests.references.tiny_studies import tiny_pipeline, tiny_study

prepared, folder, address = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
study = tiny_study(prepared, folder, '''
question: Do trials share a GPU?
arms: {one: {model.embedding_dim: 4}, two: {model.embedding_dim: 8}}
seeds: [0, 1]
''', training__device="cpu", training__epochs=60)
pipeline = tiny_pipeline(ray__address=address, ray__gpus_per_trial=0.5, ray__cpus_per_trial=0.5)
most = [0]


def wait_for_company(*_):
    # The second worker may start long after the first: a trial has to last until it is there.
    if max(most) < 2:
        time.sleep(0.5)


def find_code():
    # The driver's own folder comes first on a node that has it, so look for what was sent.
    sent = [Path(entry) for entry in sys.path if "runtime_resources" in entry]
    return sorted(path.name for entry in sent for path in entry.iterdir() if path.is_dir())


with connect(pipeline.ray):
    result = run_sweep(
        study, pipeline, folder=folder / "results/.sweeps/tiny",
        on_update=lambda progress: most.append(progress.running),
        on_epoch=wait_for_company,
    )
    import ray
    code = ray.get(ray.remote(num_gpus=0.5)(find_code).remote())
statuses = [record.status for record in result.repeat_records]
print(json.dumps({"most": max(most), "statuses": statuses, "code": code}))
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with two_nodes(tmp_path_factory.mktemp("cluster")) as there:
        yield there


@pytest.mark.integration
def test_trials_of_half_a_gpu_run_two_at_a_time_on_the_node_that_has_one(cluster, tmp_path):
    prepared = tmp_path / "prepared"
    prepare_tiny(prepared)
    line = cluster.run_driver(DRIVER, prepared, tmp_path, cluster.address, folder=ROOT)
    said = json.loads(line)
    assert (said["most"], said["statuses"]) == (2, ["finished"] * 4)
    assert said["code"] == ["dml_core", "flows", "tasks"]
    # The driver leaves a cluster that it did not start.
    assert all(process.poll() is None for process in cluster.processes)


def list_listening(process):
    """Returns the addresses at which a process takes connections."""
    try:
        found = [c for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN]
    except psutil.NoSuchProcess:
        return []
    return [(process.name(), c.laddr.ip.removeprefix("::ffff:")) for c in found]


@pytest.mark.integration
def test_the_nodes_of_a_drills_cluster_listen_on_loopback_alone(cluster):
    for node in cluster.processes:
        parent = psutil.Process(node.pid)
        members = [parent, *parent.children(recursive=True)]
        listening = [found for member in members for found in list_listening(member)]
        assert "raylet" in {name for name, _ in listening}
        assert [pair for pair in listening if not ipaddress.ip_address(pair[1]).is_loopback] == []


JOINED = """
import sys, time
from dml_core.config.pipeline import RayConfig
from tasks.sweep import cluster
from tasks.sweep.cluster import connect

cluster.SILENT_SECONDS = 3.0
with connect(RayConfig(address=sys.argv[1])):
    import ray
    print("joined", flush=True)
    while True:
        ray.nodes()
        time.sleep(0.1)
"""


@pytest.mark.integration
def test_a_joined_cluster_that_is_gone_ends_the_command_in_one_line(tmp_path):
    cluster = Cluster(tmp_path)
    try:
        cluster.start_head()
        with subprocess.Popen(
            [sys.executable, "-c", JOINED, cluster.address],
            cwd=ROOT,
            env=cluster.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as driver:
            try:
                assert driver.stdout.readline() == "joined\n"
                cluster.kill_node(0)
                killed = time.monotonic()
                said = driver.communicate(timeout=120)[1]
            finally:
                driver.kill()
    finally:
        cluster.stop()
    assert driver.returncode == 2, said
    # By itself, Ray ends the process after a minute.
    assert time.monotonic() - killed < 45
    (line,) = [line for line in said.splitlines() if line.startswith("dml: ")]
    assert line == (
        f"dml: the Ray cluster at {cluster.address} has not answered for 3 s, so the sweep was "
        "stopped; all finished trials and epochs are kept. Start the cluster again. The same "
        "command resumes."
    )
    assert "Traceback" not in said
