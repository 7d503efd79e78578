"""`dml doctor` on a healthy project and on broken ones, all with real processes.

What cannot be had here, a GPU, a node with a wrong clock or with another Ray, is made up as values
in tests/flows/doctor/test_nodes.py.
"""

import json
import shutil
import socket
import sqlite3
import subprocess
import sys

import pytest

from flows.doctor.environment import LOCK_FILE
from tasks.versioning.remote import push_data
from tasks.versioning.repo import commit_stage
from tests.references.dvc_projects import run_dvc
from tests.references.ray_clusters import free_port, two_nodes
from tests.references.running_servers import call_api, read_status, run_dml, sign_in
from tests.references.tiny_projects import TWO_ARMS, make_project

pytestmark = pytest.mark.integration
# The tests share their machine with others.
PATIENCE = ("--timeout", "240")
HUGE = """
question: Does it fit the disk?
arms: {large: {model.embedding_dim: 65535}, larger: {model.embedding_dim: 65536}}
fixed: {model.width: 32}
nuisance: {optimizer.learning_rate: {log_uniform: [0.001, 0.01]}}
trials_per_arm: 9000
seeds: [0]
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project with prepared data that a DVC remote has too."""
    folder = make_project(tmp_path_factory.mktemp("doctor"), {"main": TWO_ARMS, "huge": HUGE})
    prepared = run_dml(folder, "prepare", "--workers", "1")
    assert prepared.returncode == 0, prepared.stderr
    run_dvc(folder, "remote", "add", "--default", "storage", str(folder / "remote"))
    (folder / "remote").mkdir()
    commit_stage(folder, "prepare")
    assert push_data(folder) > 0
    return folder


@pytest.fixture(scope="module")
def servers(project):
    """The project while its servers run."""
    try:
        started = run_dml(project, "up", "--prefect-port", "0", "--mlflow-port", "0", *PATIENCE)
        assert started.returncode == 0, started.stderr
        yield {name: server["address"] for name, server in read_status(project).items()}
    finally:
        run_dml(project, "down")


def doctor(folder, *arguments, only=(), **environment):
    """The exit code, and the findings as dictionaries."""
    chosen = [word for subject in only for word in ("--only", subject)]
    done = run_dml(folder, "doctor", "--json", *PATIENCE, *chosen, *arguments, **environment)
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    findings = report["findings"]
    assert report["broken"] == sum(finding["state"] == "broken" for finding in findings)
    assert all(finding["remedy"] for finding in findings if finding["state"] != "ok")
    return done.returncode, findings


def the_broken_one(folder, *arguments, **options):
    code, findings = doctor(folder, *arguments, **options)
    assert code == 1
    (found,) = [finding for finding in findings if finding["state"] == "broken"]
    return found


def messages(findings, subject):
    return "\n".join(f["message"] for f in findings if f["subject"] == subject)


def test_a_healthy_project_has_nothing_broken_and_is_left_as_it_was(project, servers):
    code, findings = doctor(project)
    assert [f for f in findings if f["state"] == "broken"] == []
    assert code == 0
    assert f"match {LOCK_FILE}" in messages(findings, "versions")
    assert f"import {project.resolve()}" in messages(findings, "sources")
    assert "no cluster to reach" in messages(findings, "ray")
    assert "match their hashes" in messages(findings, "data")
    assert "the plan writes up to" in messages(findings, "disk")
    assert "can be written to" in messages(findings, "prefect")
    assert "can be written to" in messages(findings, "mlflow")
    assert "can be read" in messages(findings, "dvc")
    assert "has data/prepared/glyphs" in messages(findings, "dvc")
    assert "clock" in messages(findings, "clock")
    # What was written to see whether it can be is gone.
    prefect, mlflow = (sign_in(project, servers[name]) for name in ("prefect", "mlflow"))
    assert call_api(f"{prefect}/api/variables/filter", {}) == []
    models = f"{mlflow}/api/2.0/mlflow/registered-models/search"
    assert call_api(models) in ({}, {"registered_models": []})


def test_the_printed_lines_have_a_remedy_below_each_problem(project):
    port = free_port()
    done = run_dml(
        project,
        "doctor",
        "--only",
        "prefect",
        *PATIENCE,
        PREFECT_API_URL=f"http://127.0.0.1:{port}/api",
    )
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    number = next(i for i, line in enumerate(lines) if line.startswith("broken"))
    assert lines[number + 1].strip().startswith("-> Start it with: dml up")
    assert lines[-1].startswith("1 broken, 0 warning(s), ")


def test_a_wrong_package_version(project):
    lock = project / LOCK_FILE
    whole = lock.read_bytes()
    lock.write_text("psutil==0.0.1\n")
    try:
        found = the_broken_one(project, only=["versions"])
    finally:
        lock.write_bytes(whole)
    assert "psutil" in found["message"]
    assert "(locked: 0.0.1)" in found["message"]


def test_an_unreachable_ray_address(project):
    address = f"127.0.0.1:{free_port()}"
    found = the_broken_one(project, "--set", f"ray.address={address}", only=["ray"])
    assert f"ray.address={address} cannot be joined" in found["message"]
    assert "ray start --head" in found["remedy"]


def test_a_prefect_server_that_is_down_and_a_password_that_is_not_shown(project):
    url = f"http://ann:hunter2@127.0.0.1:{free_port()}/api"
    found = the_broken_one(project, only=["prefect"], PREFECT_API_URL=url)
    assert "does not answer" in found["message"]
    assert "hunter2" not in str(found)


def test_a_prefect_server_at_a_wrong_path(project, servers):
    found = the_broken_one(
        project, only=["prefect"], PREFECT_API_URL=f"{servers['prefect']}/nothing"
    )
    assert "answers with 404" in found["message"]


def test_an_mlflow_store_that_cannot_be_written(project, tmp_path):
    path = tmp_path / "mlflow.db"
    make_store(path)
    # From this byte on sqlite reads the file and refuses to write to it, also as root.
    content = bytearray(path.read_bytes())
    content[18] = 3
    path.write_bytes(content)
    found = the_broken_one(project, only=["mlflow"], MLFLOW_TRACKING_URI=f"sqlite:///{path}")
    assert "readonly database" in found["message"]
    assert "mlflow.tracking_uri" in found["remedy"]


def make_store(path):
    from mlflow.tracking import MlflowClient

    MlflowClient(f"sqlite:///{path}").search_experiments()
    # Without a journal beside it the header alone decides.
    with sqlite3.connect(path) as connection:
        connection.execute("pragma wal_checkpoint")
        connection.execute("pragma journal_mode=delete")


def test_a_damaged_prepared_data_file(project):
    folder = project / "data/prepared/glyphs"
    damaged = max(folder.rglob("*"), key=lambda p: p.stat().st_size if p.is_file() else 0)
    whole = damaged.read_bytes()
    # The file may be a link into DVC's cache, which stays as it is.
    damaged.unlink()
    damaged.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    try:
        found = the_broken_one(project, only=["data"])
    finally:
        damaged.write_bytes(whole)
    assert damaged.name in found["message"]
    assert "its sha256 is not the one" in found["message"]
    assert "dml prepare" in found["remedy"]


def test_a_dvc_remote_that_is_gone_or_lacks_the_data(project):
    gone = project / "remote-elsewhere"
    (project / "remote").rename(gone)
    try:
        found = the_broken_one(project, only=["dvc"])
        assert "the remote 'storage'" in found["message"]
        assert "is not there" in found["message"]
        (project / "remote").mkdir()
        lacking = the_broken_one(project, "--set", "data_access.mode=dvc", only=["dvc"])
        assert "lacks data/prepared/glyphs" in lacking["message"]
        assert "dml data push" in lacking["remedy"]
    finally:
        shutil.rmtree(project / "remote", ignore_errors=True)
        gone.rename(project / "remote")


def test_too_little_disk_for_the_plan(project):
    found = the_broken_one(project, "huge", only=["disk"])
    assert found["subject"] == "disk"
    assert "TiB" in found["message"]
    assert "are free at" in found["message"]


def test_a_port_in_use(project):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        found = the_broken_one(project, "--mlflow-port", str(port), only=["ports"])
    assert f"port {port}" in found["message"]
    assert "dml up --mlflow-port" in found["remedy"]


def test_a_plan_that_is_not_sound(project):
    found = the_broken_one(project, "--set", "loss.alhpa=1", only=["data"])
    assert found["subject"] == "plan"
    assert "alhpa" in found["message"]
    assert "dml check" in found["remedy"]


def test_a_server_that_has_died_since_dml_up(project, tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    folder = tmp_path / "other"
    shutil.copytree(project, folder, ignore=shutil.ignore_patterns(".dml", "remote", "cache"))
    record = {"name": "mlflow", "title": "MLflow server", "pid": ended.pid, "created": 1.0}
    record |= {"address": "http://127.0.0.1:1", "health_url": "", "log": "mlflow.log"}
    (folder / ".dml").mkdir()
    content = {"version": 1, "servers": [record]}
    (folder / ".dml/servers.json").write_text(json.dumps(content))
    found = the_broken_one(folder, only=["servers"])
    assert f"that dml up started (process {ended.pid}) has ended" in found["message"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Two nodes; the second one says that it has a GPU, and another version of timm.

    No second environment is installed for it: it finds the other version's record first.
    """
    folder = tmp_path_factory.mktemp("cluster")
    record = folder / "older" / "timm-0.0.1.dist-info"
    record.mkdir(parents=True)
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: timm\nVersion: 0.0.1\n")
    environment = {"PYTHONPATH": str(folder / "older")}
    with two_nodes(folder, worker_environment=environment) as cluster:
        yield cluster


def on(cluster):
    return dict(cluster.variables)


def test_every_node_of_a_cluster_is_asked(project, cluster):
    asked = ("--set", f"ray.address={cluster.address}")
    code, findings = doctor(project, *asked, only=["ray"], **on(cluster))
    assert code == 1
    assert "2 node(s) with 2 CPUs and 1 GPUs, room for 2 trial(s)" in messages(findings, "ray")
    (found,) = [finding for finding in findings if finding["state"] == "broken"]
    assert "other versions than this machine: timm 0.0.1 (here" in found["message"]
    assert "requirements.lock on that node" in found["remedy"]
    assert messages(findings, "data").count("match their hashes") == 2
    assert messages(findings, "clock").count("agrees with this machine's clock") == 2
    assert "for its owner alone" in messages(findings, "ray")


def test_a_node_that_claims_a_gpu_and_a_token_that_all_can_read(project, cluster, tmp_path):
    token = tmp_path / "token"
    shutil.copy(cluster.environment["RAY_AUTH_TOKEN_PATH"], token)
    token.chmod(0o644)
    asked = ("--set", f"ray.address={cluster.address}", "--set", "ray.gpus_per_trial=1")
    environment = {**on(cluster), "RAY_AUTH_TOKEN_PATH": str(token)}
    code, findings = doctor(project, *asked, only=["ray"], **environment)
    assert code == 1
    broken = "\n".join(f["message"] for f in findings if f["state"] == "broken")
    assert "nvidia-smi finds none there" in broken
    assert f"others than its owner may read {token}" in broken
    assert token.read_text() not in str(findings)
