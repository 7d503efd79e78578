"""Nodes that cannot be had here (GPUs, wrong clocks, other versions): their facts are made up."""

from dataclasses import replace

import pytest

from dml_core.config.pipeline import RayConfig
from flows.doctor.nodes import (
    NodeFacts,
    judge_gpu,
    judge_node_clock,
    judge_room,
    judge_shared_memory,
    judge_versions,
)

HERE = NodeFacts("this machine", "3.11.7", {"ray": "2.60.0", "torch": "2.14.1"})
NODE = replace(HERE, name="10.0.0.2", num_cpus=4.0)
GPU_NODE = replace(
    NODE, gpus=("A100", "A100"), driver="550.54", has_cuda=True, num_gpus=2.0, num_cpus=8.0
)


def test_a_node_like_the_driver_is_ok():
    assert judge_versions(HERE, NODE).state == "ok"
    assert judge_node_clock(NODE).state == "ok"


def test_another_version_of_ray_on_a_node_is_broken():
    old = replace(NODE, versions={"ray": "2.40.0", "torch": "2.14.1"})
    finding = judge_versions(HERE, old)
    assert (finding.subject, finding.state) == ("ray", "broken")
    assert "node 10.0.0.2" in finding.message
    assert "ray 2.40.0 (here 2.60.0)" in finding.message
    assert "torch" not in finding.message
    assert "requirements.lock on that node" in finding.remedy


def test_another_python_or_a_missing_package_on_a_node_is_broken():
    finding = judge_versions(HERE, replace(NODE, python="3.12.1", versions={"ray": "2.60.0"}))
    assert "Python 3.12.1 (here 3.11.7)" in finding.message
    assert "torch is missing (here 2.14.1)" in finding.message


@pytest.mark.parametrize(
    ("offset", "error", "state", "words"),
    [
        (0.5, 0.1, "ok", "with this machine's clock"),
        (-1.9, 0.0, "ok", "with this machine's clock"),
        (5.0, 0.5, "warning", "4.5 s ahead of"),
        (3600.0, 1.0, "broken", "3,599.0 s ahead of"),
        (-3600.0, 0.0, "broken", "3,600.0 s behind"),
        # The measurement itself may be off by so much.
        (30.0, 29.0, "ok", "with this machine's clock"),
    ],
)
def test_a_clock_is_judged_beyond_the_error_of_the_measurement(offset, error, state, words):
    node = replace(NODE, clock_offset_seconds=offset, clock_error_seconds=error)
    finding = judge_node_clock(node)
    assert finding.state == state
    assert words in finding.message


def test_a_driver_that_torch_cannot_use_is_broken():
    finding = judge_gpu(replace(GPU_NODE, has_cuda=False), wants_gpu=True)
    assert (finding.subject, finding.state) == ("gpu", "broken")
    assert "2 x A100, driver 550.54" in finding.message
    assert "Update NVIDIA's driver" in finding.remedy


def test_gpus_that_work_are_ok_and_unused_ones_a_warning():
    assert judge_gpu(GPU_NODE, wants_gpu=True).state == "ok"
    unused = judge_gpu(GPU_NODE, wants_gpu=False)
    assert unused.state == "warning"
    assert "--set ray.gpus_per_trial=1" in unused.remedy
    assert judge_gpu(NODE, wants_gpu=False).state == "ok"


def test_a_node_that_claims_gpus_without_having_any_is_broken():
    finding = judge_gpu(replace(NODE, num_gpus=1.0), wants_gpu=True)
    assert finding.state == "broken"
    assert "nvidia-smi finds none" in finding.message


def test_room_is_counted_node_by_node():
    config = RayConfig(address="auto", cpus_per_trial=3, gpus_per_trial=1)
    # 4 CPUs and no GPU: none. 8 CPUs and 2 GPUs: two.
    finding = judge_room([NODE, GPU_NODE], config)
    assert finding.state == "ok"
    assert "2 node(s) with 12 CPUs and 2 GPUs, room for 2 trial(s)" in finding.message


def test_two_nodes_that_have_room_only_together_are_broken():
    config = RayConfig(address="auto", cpus_per_trial=5)
    finding = judge_room([NODE, NODE], config)
    assert finding.state == "broken"
    assert "none would ever start" in finding.message


def test_a_small_shared_memory_is_a_warning():
    finding = judge_shared_memory(replace(NODE, free_shared_memory=64 * 1024**2))
    assert finding.state == "warning"
    assert "64.0 MiB free" in finding.message
    assert "--shm-size" in finding.remedy
