"""Every paper profile, down to its first training step on a tiny dataset in the official layout.

Nothing is trained to the end: that takes a GPU. What is shrunk stands in `shrink`; backbone, loss,
sampler, optimiser, schedule, warm-up, clipping and augmentation are the profile's own.
"""

import math
from pathlib import Path

import pytest

from dml_core.config.loading import load_project_config, to_flat_dict
from dml_core.studies.loading import load_study
from dml_core.training.epoch import take_step, training_batches
from dml_core.training.state import build_state
from tests.references.paper_datasets import prepare_official, shrink

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in (ROOT / "studies").glob("*.yaml") if path.stem != "main")
CHOSEN = ("loss.name", "loss.mining", "loss.expansion.normalize", "sampler.name", "model.backbone")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("paper")


def arms_of_each_kind(study):
    """The first arm of each combination of loss, sampler and network; numbers make no kind."""
    kinds = {}
    for arm in study.arms:
        flat = to_flat_dict(study.arm_config(arm.name))
        kind = [flat.get(key) for key in CHOSEN]
        kind += [bool(flat.get("loss.expansion.points")), flat["model.layer_norm"]]
        kind.append(flat.get("loss.proxy_ratio", 1.0) < 1)
        kinds.setdefault(str(kind), arm.name)
    return list(kinds.values())


@pytest.mark.parametrize("name", NAMES)
def test_the_first_step_of_each_kind_of_arm_gives_a_finite_loss(root, name):
    project = load_project_config(ROOT / "params.yaml")
    study = load_study(ROOT / "studies" / f"{name}.yaml", project, profile="paper")
    for arm in arms_of_each_kind(study):
        config = shrink(study.arm_config(arm), root)
        state = build_state(config, prepare_official(config))
        state.model.set_training(True, freeze_batch_norm=config.training.freeze_batch_norm)
        batch, inputs = next(training_batches(state))
        loss = take_step(state, step=0, batch=batch, inputs=inputs)
        assert math.isfinite(loss), arm
        # A frozen trunk is replaced by its cached features.
        is_cached = config.trunk.train == "none"
        assert is_cached or tuple(inputs.shape[1:]) == (3, 32, 32), arm
