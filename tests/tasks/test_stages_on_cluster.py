"""Stages on a cluster of two nodes that share no folder give the bytes of one process."""

import json
from pathlib import Path

import pytest

from dml_core.data.prepare import prepare_dataset
from dml_core.data.sources.registry import list_images
from tasks.evaluate import evaluate_study
from tasks.study import StudyRequest
from tests.references.drawn_datasets import tree_config, write_tree
from tests.references.pushed_projects import make_pushed_project
from tests.references.ray_clusters import two_nodes
from tests.references.swept_projects import add_swept_study, write_params

ROOT = Path(__file__).parents[2]
KNOBS = {
    "evaluation.batch_size": 16,
    "evaluation.block_size": 8,
    "evaluation.clustering": True,
    "evaluation.binary": True,
    "evaluation.synthetic_points": 2,
    "evaluation.occlusion": [0.3],
}

# The driver has no torch. Workers get the function by value, so they run this version of it.
EVALUATE = """
import json, os, signal, sys
sys.modules["torch"] = None
from pathlib import Path
import ray
from tasks import evaluate
from tasks.evaluate_models import run_work
from tasks.study import StudyRequest
from tasks.sweep import node_job
from tasks.sweep.cluster import kept_cluster
from tasks.sweep.node_job import NodeJob

notes, variants = Path(sys.argv[1]), json.loads(sys.argv[2])


def run_noted(shared, work):
    function, _ = work
    node = ray.get_runtime_context().get_node_id()
    name = getattr(function, "__name__", "measure_winners")
    with notes.open("a") as file:
        file.write(json.dumps([name, node, os.getpid()]) + "\\n")
    if name == "score_winner" and not notes.with_suffix(".killed").exists():
        notes.with_suffix(".killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return run_work(shared, work)


evaluate.run_work = run_noted
# A node of another machine would not find the driver's folder.
node_job.NodeJob = lambda **given: NodeJob(**{**given, "working_folder": "/nowhere"})
params = json.loads(Path("params.yaml").read_text())
gpu_nodes, written = [], {}
with kept_cluster():
    for name, variant in variants.items():
        params["ray"].update(variant["ray"])
        Path("params.yaml").write_text(json.dumps(params))
        evaluate.PART_IMAGES = variant["part_images"]
        notes.write_text("")
        folder = evaluate.evaluate_study.fn(StudyRequest(study="tiny")).parent
        for path in folder.iterdir():
            Path(sys.argv[3], name).mkdir(exist_ok=True)
            (Path(sys.argv[3], name) / path.name).write_bytes(path.read_bytes())
        written[name] = [json.loads(line) for line in notes.read_text().splitlines()]
    gpu_nodes = [n["NodeID"] for n in ray.nodes() if n["Resources"].get("GPU")]
print(json.dumps({"written": written, "gpu_nodes": gpu_nodes}))
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with two_nodes(tmp_path_factory.mktemp("cluster")) as there:
        yield there


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project with winners, whose data are in a remote."""
    folder = make_pushed_project(tmp_path_factory.mktemp("pushed"))
    add_swept_study(folder, KNOBS)
    return folder


@pytest.fixture(scope="module")
def expected(project):
    """The folder of the evaluation in one process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project)
        return project / evaluate_study.fn(StudyRequest(study="tiny")).parent


@pytest.fixture(scope="module")
def found(project, expected, cluster, tmp_path_factory):
    """What the cluster wrote, by variant, and which nodes and processes did the work."""
    folder = tmp_path_factory.mktemp("found")
    before = {path.name: path.read_bytes() for path in expected.iterdir()}
    access = {"data_access.mode": "dvc", "data_access.cache_root": str(folder / "cache")}
    write_params(project, {**KNOBS, **access, "ray.address": cluster.address})
    variants = {
        # Only the second node has a GPU, and room for two models on it.
        "half a GPU": {
            "ray": {"cpus_per_trial": 0.5, "gpus_per_trial": 0.5},
            "part_images": 100_000,
        },
        "split": {"ray": {"cpus_per_trial": 0.5, "gpus_per_trial": 0.0}, "part_images": 16},
    }
    line = cluster.run_driver(
        EVALUATE,
        folder / "notes.txt",
        json.dumps(variants),
        folder,
        folder=project,
        environment={"PYTHONPATH": str(ROOT)},
    )
    return before, folder, json.loads(line)


@pytest.mark.integration
@pytest.mark.parametrize("variant", ["half a GPU", "split"])
def test_an_evaluation_on_the_cluster_has_the_bytes_of_one_process(found, variant):
    before, folder, _ = found
    after = {path.name: path.read_bytes() for path in (folder / variant).iterdir()}
    measures = [json.loads(files.pop("measures.json")) for files in (dict(before), after)]
    assert measures[0]["curves"] == measures[1]["curves"]
    assert measures[0]["scalars"]["cost.memory_mib"] == measures[1]["scalars"]["cost.memory_mib"]
    before = {name: content for name, content in before.items() if name != "measures.json"}
    assert after.keys() == before.keys()
    assert [name for name in before if before[name] != after[name]] == []
    assert {"scores.json", "embeddings.npy", "retrieval.png"} <= before.keys()


@pytest.mark.integration
def test_models_of_half_a_gpu_run_on_the_node_that_has_one(found):
    _, _, said = found
    notes = said["written"]["half a GPU"]
    assert {node for _, node, _ in notes} == set(said["gpu_nodes"])
    assert {name for name, _, _ in notes} == {
        "score_untrained",
        "score_winner",
        "show_model",
        "measure_winners",
    }


@pytest.mark.integration
def test_a_killed_worker_costs_no_score(found):
    _, folder, said = found
    assert (folder / "notes.killed").exists()
    scored = [name for name, _, _ in said["written"]["half a GPU"] if name == "score_winner"]
    # Four winners; that of the killed worker was scored again.
    assert len(scored) >= 5


@pytest.mark.integration
def test_nodes_fetch_test_images_apart_from_those_of_trials(found):
    _, folder, _ = found
    for kind, part in (("prepared", "development"), ("test", "test")):
        (fetched,) = (folder / "cache" / kind).glob("*/glyphs")
        assert {path.name for path in fetched.iterdir() if path.is_dir()} == {part}


PREPARE = """
import json, sys, time
from pathlib import Path
import numpy, ray
from dml_core.config.data import FolderData
from dml_core.config.pipeline import RayConfig
from tasks import prepare_on_nodes
from tasks.prepare import prepare_data
from tasks.sweep.cluster import kept_cluster

address, notes = sys.argv[1], Path(sys.argv[2])
pack_chunk = prepare_on_nodes._pack_chunk


def pack_noted(*arguments, **options):
    with notes.open("a") as file:
        file.write(ray.get_runtime_context().get_node_id() + "\\n")
    # The first node could pack everything before the other one has started a process.
    deadline = time.monotonic() + 60
    while len(set(notes.read_text().split())) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    return pack_chunk(*arguments, **options)


prepare_on_nodes.FEW_IMAGES = 1
versions = {name: prepare_on_nodes.version(name) for name in ("numpy", "pillow")}
prepare_on_nodes._pack_chunk = pack_noted
said = []
with kept_cluster():
    for config, version in zip(sys.argv[3:], ("0.0", numpy.__version__)):
        prepare_on_nodes.version = {**versions, "numpy": version}.get
        notes.write_text("")
        found = prepare_data.fn(FolderData.model_validate_json(config), RayConfig(address=address))
        said.append([found["content_hash"], len(set(notes.read_text().split()))])
print(json.dumps(said))
"""


def read_all(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.integration
def test_data_packed_by_all_nodes_have_the_bytes_of_one_process(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_tree(Path("raw"), num_classes=8, num_images=40)
    (tmp_path / "raw" / "c00" / "1.png").write_bytes(b"no image")
    configs = [tree_config(Path(name), raw="raw") for name in ("alone", "driver", "nodes")]
    info = prepare_dataset(list_images(configs[0]), configs[0], workers=1)
    assert info.num_refused == 1
    line = cluster.run_driver(
        PREPARE,
        cluster.address,
        tmp_path / "notes.txt",
        # At first the nodes have another numpy than the driver, so it packs alone.
        *(config.model_dump_json() for config in configs[1:]),
        folder=tmp_path,
        environment={"PYTHONPATH": str(ROOT)},
    )
    assert json.loads(line) == [[info.content_hash, 0], [info.content_hash, 2]]
    alone, *others = (read_all(config.prepared_path) for config in configs)
    assert others == [alone, alone]
