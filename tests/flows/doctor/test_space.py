from dataclasses import replace

import pytest

from dml_core.config.loading import ProjectConfig
from dml_core.config.pipeline import PipelineConfig
from dml_core.training.in_folder import train_in_folder
from flows.doctor.nodes import TEMPORARY, NodeFacts
from flows.doctor.space import (
    BASE_MEMORY,
    PlanNeeds,
    estimate_needs,
    judge_disk,
    judge_fullness,
    judge_memory,
    measure_checkpoint,
)
from tasks.study import StudyContext, StudyRequest
from tests.references.tiny_studies import tiny_study
from tests.references.tiny_trials import prepare_tiny, tiny_config

GIB = 1024**3
NEEDS = PlanNeeds(
    num_trained=10, checkpoint_bytes=GIB, trials_bytes=40 * GIB, data_bytes=0, memory_bytes=GIB
)


def node(free, total=1000 * GIB, memory=64 * GIB):
    disks = {"results": (free, total), TEMPORARY: (free, total)}
    return NodeFacts("n1", free_disk=disks, free_memory=memory)


@pytest.mark.parametrize(("free", "state"), [(39, "broken"), (79, "warning"), (81, "ok")])
def test_the_disk_is_compared_with_the_plan(free, state):
    finding = judge_disk(node(free * GIB), NEEDS, folder="results")
    assert finding.state == state
    assert "the plan writes up to 40.0 GiB" in finding.message
    assert f"{free}.0 GiB are free at results" in finding.message


@pytest.mark.parametrize(("free", "state"), [(40, "broken"), (60, "ok")])
def test_a_disk_that_ray_considers_full_is_broken(free, state):
    assert judge_fullness(node(free * GIB)).state == state


@pytest.mark.parametrize(("free", "state"), [(0.5, "broken"), (2, "warning"), (4, "ok")])
def test_the_memory_is_compared_with_trials_at_once(free, state):
    finding = judge_memory(node(GIB, memory=int(free * GIB)), NEEDS, at_once=3)
    assert finding.state == state
    assert "3 trial(s) at once need at least 3.0 GiB" in finding.message


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_checkpoint_has_about_the_estimated_size(tmp_path, optimizer):
    knobs = {"model__embedding_dim": 64, "model__width": 24, "optimizer__name": optimizer}
    config = tiny_config(tmp_path, training__epochs=1, **knobs)
    data = prepare_tiny(tmp_path)
    train_in_folder(config, data, tmp_path / "run")
    (written,) = (tmp_path / "run" / "checkpoints").iterdir()
    foreseen = measure_checkpoint(config)
    # The file has names and padding besides the numbers.
    assert foreseen * 0.8 < written.stat().st_size < foreseen * 1.3 + 60_000


def test_a_large_network_is_measured_without_building_it(tmp_path):
    config = tiny_config(
        tmp_path, model__backbone="torchvision:resnet50", data__image_size_px=64, data__color="rgb"
    )
    # 23.5 million weights of the trunk, with the best ones and the two numbers of AdamW.
    assert 4 * 4 * 23.5e6 < measure_checkpoint(config) < 4 * 4 * 26e6


def test_needs_grow_with_the_trials(tmp_path):
    prepare_tiny(tmp_path)
    study = tiny_study(tmp_path, tmp_path)
    request = StudyRequest(study="tiny")
    project = ProjectConfig(study.arm_config("small"), PipelineConfig(), {}, {})
    needs = estimate_needs(StudyContext(request, project, study))
    more = estimate_needs(StudyContext(request, project, replace(study, trials_per_arm=200)))
    # Two arms of 2 tries and 2 seeds.
    assert needs.num_trained == 2 * (2 + 2)
    assert needs.data_bytes == 0
    assert needs.memory_bytes == BASE_MEMORY + needs.checkpoint_bytes
    assert more.trials_bytes > 20 * needs.trials_bytes
