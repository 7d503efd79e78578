"""A cluster that grows when trials wait and shrinks when it is idle, by Ray's simulated autoscaler.

`ray.cluster_utils.AutoscalingCluster` cannot be used: the wheel of Ray lacks its configuration
file, and it ends every Ray of the machine before it starts. The nodes here come from the same
provider.
"""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from dml_core.config.pipeline import RayConfig
from dml_core.config.training import DdpConfig
from tasks.sweep.cluster import count_concurrent
from tasks.sweep.job import bundles_of
from tasks.sweep.nodes import NodeCount, TrialNeed, count_most, need_of
from tests.references.ray_clusters import Cluster
from tests.references.tiny_trials import prepare_tiny

ROOT = Path(__file__).parents[3]
AUTOSCALER = {
    "cluster_name": "fake",
    "max_workers": 2,
    "provider": {
        "type": "fake_multinode",
        "use_node_id_as_ip": True,
        "disable_node_updaters": True,
        "disable_launch_config_check": True,
    },
    "available_node_types": {
        "ray.head.default": {"resources": {}, "node_config": {}, "max_workers": 0},
        "worker": {"resources": {"CPU": 1}, "node_config": {}, "max_workers": 2},
    },
    "head_node_type": "ray.head.default",
    "upscaling_speed": 2.0,
    "idle_timeout_minutes": 0.05,
    **{name: {} for name in ("auth", "docker", "file_mounts")},
    **{
        name: []
        for name in (
            *("cluster_synced_files", "initialization_commands", "setup_commands"),
            *("head_setup_commands", "head_start_ray_commands"),
            *("worker_setup_commands", "worker_start_ray_commands"),
        )
    },
    "file_mounts_sync_continuously": False,
    "no_restart": False,
}


def test_an_elastic_cluster_needs_a_number_of_trials():
    with pytest.raises(ValidationError, match=r"elastic=true needs ray\.max_concurrent"):
        RayConfig(elastic=True, address="auto")


def test_trials_wait_for_nodes_of_an_elastic_cluster_that_has_none():
    # No cluster is asked: its capacity now does not matter.
    assert count_concurrent(RayConfig(elastic=True, address="auto", max_concurrent=5)) == 5


def test_the_gpus_of_a_sweep_are_limited_whatever_the_size_of_a_trial():
    def most(workers=1, **knobs):
        config = RayConfig(max_gpus=4, **knobs)
        return count_most(config, [need_of(config, DdpConfig(workers=workers))])

    assert most() == 0
    assert most(gpus_per_trial=1) == 4
    assert most(gpus_per_trial=0.1) == 40
    assert most(workers=3, gpus_per_trial=1) == 1
    assert most(gpus_per_trial=1, max_concurrent=3) == 3
    with pytest.raises(ValueError, match=r"ray\.max_gpus must be at least .* 6\. Got 4\."):
        most(workers=2, gpus_per_trial=3)


def test_an_arm_may_need_more_gpus_than_others():
    config = RayConfig(gpus_per_trial=1)
    large = DdpConfig(workers=2, gpus_per_worker=2)
    assert need_of(config, large) == TrialNeed(cpus=2, gpus=4)
    assert need_of(config, DdpConfig(gpus_per_worker=0)) == TrialNeed(cpus=1, gpus=0)
    assert bundles_of(config, large).bundles == [{"CPU": 1, "GPU": 2}] * 2
    limited = RayConfig(gpus_per_trial=1, max_gpus=8)
    # All of them may be as large as the largest.
    assert count_most(limited, [need_of(limited), need_of(limited, large)]) == 2


def test_nodes_are_counted_in_words():
    assert NodeCount(1, 0).describe() == "1 node"
    assert NodeCount(0, 2).describe() == "0 nodes, 2 requested"


DRIVER = """
import json, sys, time
from pathlib import Path
import psutil
from tasks.sweep.cluster import connect
from tasks.sweep.nodes import count_nodes
from tasks.sweep.run import run_sweep
from tests.references.tiny_studies import tiny_pipeline, tiny_study

prepared, folder, address = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
study = tiny_study(prepared, folder, '''
question: Do trials wait for nodes?
arms: {one: {model.embedding_dim: 4}, two: {model.embedding_dim: 8}}
seeds: [0]
''', training__device="cpu", training__epochs=30)
pipeline = tiny_pipeline(ray__address=address, ray__elastic=True, ray__max_concurrent=2)
counts, epochs, killed = [], {}, []


def take_node_away(raylet):
    # A spot node: its raylet and all its workers are gone at once.
    for process in [*raylet.children(recursive=True), raylet]:
        process.kill()


def find_trainer():
    for process in psutil.process_iter():
        try:
            if process.name().startswith("ray::Implicit") and process.environ().get(
                "RAY_AUTH_TOKEN_PATH") == sys.argv[4]:
                return process
        except psutil.Error:
            continue


def on_epoch(spec, report):
    epochs.setdefault(spec.trial_id, []).append(report["epoch"])
    # Once both nodes work, one of them is taken away in mid-trial.
    if not killed and len(epochs) == 2 and report["epoch"] >= 3:
        killed.append(spec.trial_id)
        take_node_away(find_trainer().parent())
    if not killed:
        time.sleep(0.1)


with connect(pipeline.ray):
    before = count_nodes().there
    result = run_sweep(
        study, pipeline, folder=folder / "results/.sweeps/tiny", on_epoch=on_epoch,
        on_update=lambda progress: counts.append([progress.nodes, progress.nodes_requested]),
    )
    deadline = time.monotonic() + 90
    while (left := count_nodes().there) and time.monotonic() < deadline:
        time.sleep(0.5)
print(json.dumps({
    "before": before, "counts": counts, "left": left, "epochs": epochs, "killed": len(killed),
    "statuses": [record.status for record in result.repeat_records],
}))
"""


@pytest.fixture
def cluster(tmp_path):
    """A head that only conducts, and an autoscaler of at most two nodes."""
    head = Cluster(
        tmp_path,
        cpus=0,
        environment={"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1"},
    )
    provider = {**AUTOSCALER["provider"], "gcs_address": f"127.0.0.1:{head.port}"}
    config = tmp_path / "autoscaler.json"
    config.write_text(json.dumps({**AUTOSCALER, "provider": provider}))
    try:
        head.start_head(options=[f"--autoscaling-config={config}"])
        yield head
    finally:
        head.stop()


@pytest.mark.integration
def test_nodes_come_when_trials_wait_one_is_lost_and_all_go_when_idle(cluster, tmp_path):
    prepared = tmp_path / "prepared"
    prepare_tiny(prepared)
    token = cluster.variables["RAY_AUTH_TOKEN_PATH"]
    line = cluster.run_driver(DRIVER, prepared, tmp_path, cluster.address, token, folder=ROOT)
    said = json.loads(line)
    assert said["before"] == 0
    assert max(there for there, _ in said["counts"]) == 2
    assert max(requested for _, requested in said["counts"]) >= 1
    assert (said["killed"], said["statuses"]) == (1, ["finished"] * 2)
    # No epoch that was recorded is trained again: the loss is at most the one that was in progress.
    assert all(found == list(range(1, 31)) for found in said["epochs"].values())
    assert said["left"] == 0
