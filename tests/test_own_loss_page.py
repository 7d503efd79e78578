"""The example of docs/own-loss.md, as it stands on the page."""

import inspect
import json
import re
import sys
from pathlib import Path

import pytest
import torch
import yaml
from pytorch_metric_learning import losses as peers

from dml_core.config.loading import load_project_config
from dml_core.losses import build_loss
from dml_core.studies.loading import load_study
from dml_core.studies.own_code_checks import check_own_code
from tests.dml_core.losses import test_every_loss as every_loss
from tests.references.ray_clusters import two_nodes
from tests.references.tiny_trials import TINY, prepare_tiny

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "own-loss.md").read_text(encoding="utf-8")
(EXAMPLE,) = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
(STUDY,) = re.findall(r"```yaml\n(.*?)```", TEXT, flags=re.DOTALL)
NAME = "python:my_losses:SupConLoss"
INVARIANCES = {
    name: test
    for name, test in vars(every_loss).items()
    if name.startswith("test_") and {"name"} <= {*inspect.signature(test).parameters}
}
FURTHER = {
    "kind": ["all different", "all equal", "one image", "two images"],
    "dtype": [torch.float32, torch.bfloat16, torch.float16],
}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    (folder / "my_losses.py").write_text(EXAMPLE)
    (folder / "studies").mkdir()
    (folder / "studies" / "my_loss.yaml").write_text(STUDY)
    return folder


@pytest.fixture(autouse=True)
def in_project(project, monkeypatch):
    monkeypatch.chdir(project)
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_the_example_is_short_and_equals_pytorch_metric_learning():
    assert len([line for line in EXAMPLE.splitlines() if line.strip()]) <= 22
    loss = build_loss(NAME, num_classes=5, embedding_dim=6, options={"temperature": 0.2})
    drawn = torch.randn(20, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    embeddings, labels = torch.nn.functional.normalize(drawn, dim=1), torch.arange(20) % 5
    expected = peers.SupConLoss(temperature=0.2)(embeddings, labels)
    torch.testing.assert_close(loss(embeddings, labels), expected)


@pytest.mark.parametrize("check", INVARIANCES)
def test_the_example_has_the_invariances_of_our_losses(check):
    test = INVARIANCES[check]
    further = {*inspect.signature(test).parameters} & {*FURTHER}
    knobs = {"knobs": {}} if "knobs" in inspect.signature(test).parameters else {}
    if not further:
        test(name=NAME, **knobs)
    for key in further:
        for value in FURTHER[key]:
            test(name=NAME, **knobs, **{key: value})


def test_the_study_of_the_page_is_sound(project):
    study = load_study(project / "studies/my_loss.yaml", load_project_config(ROOT / "params.yaml"))
    check_own_code(study)
    assert len(study.arms) == 2
    assert "loss.options.temperature" in study.arms[1].space


DRIVER = """
import json, sys
from pathlib import Path

sys.argv = ["dml", *sys.argv[1:]]
from tasks.sources import pin_sources

copy = pin_sources()
# From now on only the copy has the loss, as on a node of another machine.
Path("my_losses.py").rename("moved.txt")

from dml_core.config.loading import load_project_config
from dml_core.studies.loading import load_study
from tasks.sweep.cluster import connect
from tasks.sweep.run import run_sweep


def find_code():
    import my_losses
    return my_losses.__file__


project = load_project_config(Path("params.yaml"), sys.argv[1:])
study = load_study(Path("studies/tiny.yaml"), project)
with connect(project.pipeline.ray):
    import ray

    result = run_sweep(study, project.pipeline, folder=Path("results/.sweeps/tiny"))
    code = ray.get(ray.remote(num_gpus=0.5)(find_code).remote())
found = [[r.spec.arm, r.status, r.reason, r.score] for r in result.repeat_records]
print(json.dumps({"trials": found, "code": code}))
"""


@pytest.mark.integration
def test_the_example_trains_on_the_second_node_of_a_cluster(tmp_path, project):
    prepare_tiny(project / "data" / "prepared")
    (project / "params.yaml").write_text((ROOT / "params.yaml").read_text())
    arm = {"loss.name": NAME, "loss.options.temperature": 0.2}
    study = {"question": "Does it train?", "arms": {"own": arm}, "seeds": [0]}
    (project / "studies" / "tiny.yaml").write_text(yaml.safe_dump(study))
    tiny = [f"{key}={json.dumps(value)}" for key, value in TINY.items()]
    with two_nodes(tmp_path) as cluster:
        line = cluster.run_driver(
            DRIVER,
            *tiny,
            f"ray.address={cluster.address}",
            # Only the second node has a GPU.
            "ray.gpus_per_trial=0.5",
            "ray.cpus_per_trial=0.5",
            "training.device=cpu",
            folder=project,
            environment={"PYTHONPATH": str(ROOT)},
        )
    said = json.loads(line)
    ((arm, status, reason, score),) = said["trials"]
    assert (arm, status, reason) == ("own", "finished", "")
    assert 0 < score <= 1
    assert "/runtime_resources/" in said["code"]
