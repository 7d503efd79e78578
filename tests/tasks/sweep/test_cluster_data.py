"""A node that has neither the code nor the data gets both: sent by the driver, fetched by hash."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.references.pushed_projects import make_pushed_project
from tests.references.ray_clusters import two_nodes
from tests.references.tiny_trials import TINY

ROOT = Path(__file__).parents[3]

STUDY = """
question: Does a wider embedding help?
arms: {small: {model.embedding_dim: 4}, large: {model.embedding_dim: 8}}
seeds: [0, 1]
"""

# Every Python process of the second node starts with it: the project's editable install is gone,
# and it is written down what is opened of the project's code and of the remote, and each fetch.
SITE = """
import os, sys
sys.meta_path[:] = [f for f in sys.meta_path if "__editable__" not in getattr(f, "__module__", "")]

def note(event, arguments):
    if event not in ("open", "tempfile.mkdtemp") or not isinstance(arguments[0], str):
        return
    path = os.path.abspath(arguments[0])
    is_fetch = event == "tempfile.mkdtemp" and "/.fetch-" in path
    if is_fetch or path.startswith(os.environ["NODE_REMOTE"]) or "/dml_core/" in path:
        descriptor = os.open(os.environ["NODE_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, f"{os.getpid()} {path}\\n".encode())
        os.close(descriptor)

sys.addaudithook(note)
"""

DRIVER = """
import json, sys
from pathlib import Path
from dml_core.config.loading import load_project_config
from dml_core.studies.loading import load_study
from tasks.sweep import tune as ray_tune_job
from tasks.sweep.cluster import connect
from tasks.sweep.run import run_sweep

results, *assignments = sys.argv[1:]
here, away = Path.cwd(), Path.cwd().with_name("moved")
run_tune_job = ray_tune_job.run_tune_job
said = {}


def find_code():
    import dml_core, tasks
    return [dml_core.__file__, tasks.__file__]


def run_out_of_sight(*arguments, **options):
    # A node of another machine would not find the driver's folder, with the code and the data.
    import ray
    here.rename(away)
    try:
        run_tune_job(*arguments, **options)
        said["code"] = ray.get(ray.remote(num_gpus=0.5)(find_code).remote())
    finally:
        away.rename(here)


def sweep(mode):
    project = load_project_config(
        Path("params.yaml"), [*assignments, f"data_access.mode={mode}"]
    )
    study = load_study(Path("studies/a.yaml"), project)
    with connect(project.pipeline.ray):
        result = run_sweep(study, project.pipeline, folder=Path(results) / mode / ".sweeps/a")
    records = result.repeat_records
    return [
        [r.spec.trial_id, r.status, r.reason, r.score, r.validation] for r in records
    ]


ray_tune_job.run_tune_job = run_out_of_sight
said["dvc"] = sweep("dvc")
ray_tune_job.run_tune_job = run_tune_job
said["shared"] = sweep("shared")
print(json.dumps(said))
"""


@pytest.fixture
def project(tmp_path):
    """The driver's folder: the study and the data, pushed to a folder, and no code."""
    folder = make_pushed_project(tmp_path)
    (folder / "studies" / "a.yaml").write_text(STUDY)
    return folder


@pytest.fixture
def node(tmp_path):
    """What the second node's processes start with."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITE)
    log, remote = tmp_path / "opened.log", tmp_path / "storage"
    return {"PYTHONPATH": str(site), "NODE_LOG": str(log), "NODE_REMOTE": str(remote)}


@pytest.mark.integration
def test_a_bare_node_is_sent_the_code_and_fetches_the_data_once(tmp_path, project, node):
    alone = [sys.executable, "-c", "import dml_core"]
    run = subprocess.run(alone, cwd=tmp_path, env={**os.environ, **node}, capture_output=True)
    assert b"No module named 'dml_core'" in run.stderr
    tiny = [f"{key}={json.dumps(value)}" for key, value in TINY.items() if "dim" not in key]
    with two_nodes(tmp_path, worker_environment=node) as cluster:
        line = cluster.run_driver(
            DRIVER,
            tmp_path / "results",
            *tiny,
            f"ray.address={cluster.address}",
            # Only the second node has a GPU, and room for two trials on it.
            "ray.gpus_per_trial=0.5",
            "ray.cpus_per_trial=0.5",
            "training.device=cpu",
            f"data_access.cache_root={tmp_path / 'cache'}",
            folder=project,
            environment={"PYTHONPATH": str(ROOT)},
        )
    said = json.loads(line)
    assert [trial[1:3] for trial in said["dvc"]] == [["finished", ""]] * 4
    assert said["dvc"] == said["shared"]
    check_code_was_sent(said["code"], read_notes(node))
    check_fetched_once(project, tmp_path, read_notes(node))
    # The winners speak of the project's data, wherever a node had them.
    for winner in (tmp_path / "results/dvc/a/sweep/winners").iterdir():
        config = json.loads((winner / "config.json").read_text())
        assert config["data.prepared_root"] == "data/prepared"


def read_notes(node):
    lines = Path(node["NODE_LOG"]).read_text().splitlines()
    return [(pid, Path(path)) for pid, path in (line.split(" ", 1) for line in lines)]


def check_code_was_sent(imported, notes):
    opened = {(pid, path) for pid, path in notes if "dml_core" in path.parts}
    # At least one process for each of the two sweeps.
    assert len({pid for pid, _ in opened}) >= 2
    paths = [*(str(path) for _, path in opened), *imported]
    assert [path for path in paths if "/runtime_resources/" not in path] == []


def check_fetched_once(project, tmp_path, notes):
    lock = yaml.safe_load((project / "dvc.lock").read_text())
    (version,) = [out["md5"] for out in lock["stages"]["prepare"]["outs"]]
    (fetch,) = [path for _, path in notes if path.name.startswith(".fetch-")]
    kept = tmp_path / "cache" / "prepared" / version.removesuffix(".dir")
    assert fetch.parent == kept
    assert [path.name for path in kept.iterdir()] == ["glyphs"]
    names = sorted(str(p.relative_to(kept)) for p in kept.rglob("*") if p.is_file())
    development = ["development/images.bin", "development/manifest.parquet"]
    assert names == [f"glyphs/{n}" for n in ("dataset.json", *development, "splits.json")]
    # The remote was read by one process, and nothing but the list of files and what is wanted.
    reads = {(pid, path) for pid, path in notes if path.is_relative_to(tmp_path / "storage")}
    assert len({pid for pid, _ in reads}) == 1
    wanted = [md5(kept / name) for name in names]
    assert {"".join(path.parts[-2:]) for _, path in reads} == {version, *wanted}


def md5(file):
    return hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest()
