"""What frozen trunks make of images, computed by two nodes that share no folder."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from dml_core.data.prepared import open_development
from dml_core.training.activations import make_inputs
from dml_core.training.state import build_trial_model
from tasks.sweep.cached_activations import split_blocks
from tests.references.pushed_projects import make_pushed_project
from tests.references.ray_clusters import two_nodes
from tests.references.tiny_trials import TINY, prepare_tiny, tiny_config

ROOT = Path(__file__).parents[3]

KNOBS = {
    "trunk__train": "from:stage3",
    "trunk__cache_views": 2,
    "evaluation__batch_size": 16,
}

DRIVER = """
import json, sys
from pathlib import Path
import ray
from dml_core.config.loading import load_project_config
from tasks.sweep import cached_activations as ray_activations
from tasks.sweep.cluster import connect
from tasks.sweep import node_job
from tasks.sweep.cached_activations import compute_rows
from tasks.sweep.node_job import NodeJob

notes, assignments = Path(sys.argv[1]), sys.argv[2:]
project = load_project_config(Path("params.yaml"), assignments)


def compute_noted(order, wanted, start, stop):
    node = ray.get_runtime_context().get_node_id()
    with notes.open("a") as file:
        file.write(f"{node} {wanted.place} {wanted.view} {start} {stop}\\n")
    return compute_rows(order, wanted, start, stop)


# A node of another machine would not find the driver's folder.
node_job.NodeJob = lambda **given: NodeJob(**{**given, "working_folder": "/nowhere"})
ray_activations._compute_rows = ray.remote(compute_noted)
with connect(project.pipeline.ray):
    for _ in range(2):
        ray_activations.compute_activations([project.trial] * 3, project.pipeline)
print(json.dumps(len(ray_activations._distinct([project.trial] * 3))))
"""


@pytest.mark.parametrize(
    ("num_images", "block", "num_parts", "expected"),
    [
        (10, 4, 2, [(0, 4), (4, 10)]),
        (10, 4, 9, [(0, 4), (4, 8), (8, 10)]),
        (3, 4, 2, [(0, 3)]),
        (16, 4, 4, [(0, 4), (4, 8), (8, 12), (12, 16)]),
    ],
)
def test_parts_are_whole_blocks(num_images, block, num_parts, expected):
    assert split_blocks(num_images, block, num_parts) == expected


@pytest.fixture
def project(tmp_path):
    """The driver's folder, with its data pushed to where the nodes fetch them."""
    return make_pushed_project(tmp_path)


@pytest.mark.integration
def test_both_nodes_compute_once_and_each_has_a_copy(tmp_path, project):
    config = tiny_config(tmp_path / "alone", **KNOBS)
    tiny = {**TINY, **{key.replace("__", "."): value for key, value in KNOBS.items()}}
    assignments = [f"{key}={json.dumps(value)}" for key, value in tiny.items()]
    with two_nodes(tmp_path) as cluster:
        line = cluster.run_driver(
            DRIVER,
            tmp_path / "notes.txt",
            *assignments,
            f"ray.address={cluster.address}",
            "ray.cpus_per_trial=0.5",
            "data_access.mode=dvc",
            f"data_access.cache_root={tmp_path / 'cache'}",
            folder=project,
            environment={"PYTHONPATH": str(ROOT)},
        )
    assert json.loads(line) == 1  # trials with the same trunk count once
    check_parts((tmp_path / "notes.txt").read_text().splitlines())
    expected = compute_alone(tmp_path / "alone", config)
    here = project / "data" / "prepared" / ".activations"
    (away,) = (tmp_path / "cache" / "prepared").glob("*/.activations")
    for root in (here, away):
        found = {file.relative_to(root): np.load(file) for file in root.rglob("*.npy")}
        assert found.keys() == expected.keys()
        assert all(np.array_equal(found[name], expected[name]) for name in expected)


def check_parts(lines):
    """Every part was computed once, and both nodes did some of the work."""
    parts = [line.split(" ", 1)[1] for line in lines]
    assert len(parts) == len(set(parts)) > 3
    assert len({line.split()[0] for line in lines}) == 2


def compute_alone(root, config):
    prepare_tiny(root)
    data, device = open_development(config.data), torch.device("cpu")
    model = build_trial_model(config, in_channels=data.info.channels, device=device)
    make_inputs(model, data, config, device=device)
    store = root / ".activations"
    return {file.relative_to(store): np.load(file) for file in store.rglob("*.npy")}
