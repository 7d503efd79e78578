"""Tests that several ranks which share a batch take the steps of one process with that batch."""

import pytest
import torch

from dml_core.config import ConfigError
from dml_core.data.prepared import open_development
from dml_core.training.ddp import WorkerGroup
from dml_core.training.trial import run_trial
from tests.references.ddp_steps import LABELS, VARIANTS, take_first_steps, take_first_steps_together
from tests.references.tiny_trials import prepare_tiny, tiny_config


@pytest.fixture(scope="module")
def labelled_root(tmp_path_factory):
    root = tmp_path_factory.mktemp("labelled")
    prepare_tiny(root, data__continuous_labels=LABELS)
    return root


@pytest.fixture(scope="module")
def alone(labelled_root):
    return take_first_steps(labelled_root)


@pytest.fixture(scope="module", params=[2, 3])
def together(request, labelled_root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("together")
    return take_first_steps_together(labelled_root, folder, world_size=request.param)


@pytest.mark.parametrize("variant", VARIANTS)
def test_losses_and_gradients_equal_those_of_one_worker(alone, together, variant):
    expected = alone[variant]
    assert expected["double: loss"] != 0
    for rank in together:
        found = rank[variant]
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            # Three layers of batch norm and maxima lose some digits; in double none is missing.
            digits = 1e-4 if name.startswith("single") else 1e-10
            bound = digits * largest_of_kind(expected, name)
            torch.testing.assert_close(
                found[name], value, rtol=0, atol=bound, msg=lambda m, n=name: f"{n}: {m}"
            )


def largest_of_kind(step, name):
    """The largest number that a value is a sum of, more or less.

    Distances do not change when all embeddings move alike, so that the gradient of the last bias
    is what rounding leaves of large numbers that cancel out.
    """
    kind = "gradient of" if "gradient of" in name else name
    return max(float(value.abs().max()) for key, value in step.items() if kind in key)


@pytest.mark.parametrize("variant", VARIANTS)
def test_all_ranks_have_the_same_bits(together, variant):
    first, *others = (rank[variant] for rank in together)
    for other in others:
        assert all(torch.equal(first[name], other[name]) for name in first)


def test_every_parameter_that_learns_is_compared(alone):
    names = alone["proxy_anchor"].keys()
    for name in ("trunk.stage1.0.weight", "trunk.stage1.1.bias", "head.projection.bias", "proxies"):
        assert f"double: gradient of {name}" in names
    assert "double: trunk.stage3.1.running_var" in names


def test_the_factors_of_lora_and_the_parameters_of_an_own_loss_are_compared(alone):
    factors = {name for name in alone["lora"] if "gradient of trunk" in name}
    assert {name.split(".")[-3] for name in factors} == {"lora_A", "lora_B"}
    found = [*(alone["lora"][name] for name in factors)]
    found.append(alone["own loss"]["double: gradient of loss.weights"])
    assert all(gradient.abs().max() > 0 for gradient in found)


@pytest.mark.parametrize(
    ("batch_size", "world_size", "shards"),
    [(8, 2, [(0, 4), (4, 8)]), (8, 3, [(0, 3), (3, 6), (6, 8)]), (3, 3, [(0, 1), (1, 2), (2, 3)])],
)
def test_shards_cover_the_batch_evenly(batch_size, world_size, shards):
    store = torch.distributed.HashStore()
    groups = [WorkerGroup(store, rank=r, world_size=world_size) for r in range(world_size)]
    found = [group.shard(batch_size) for group in groups]
    assert [(shard.start, shard.stop) for shard in found] == shards


def test_more_workers_than_images_are_refused():
    group = WorkerGroup(torch.distributed.HashStore(), rank=0, world_size=4)
    with pytest.raises(ValueError, match=r"Got 4 workers and a batch of 3 images"):
        group.shard(3)


def test_a_configuration_that_cannot_be_shared_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"trial.workers must be at most sampler.batch_size"):
        tiny_config(tmp_path, trial__workers=17)
    with pytest.raises(ConfigError, match=r"training.compile=true needs trial.workers=1"):
        tiny_config(tmp_path, trial__workers=2, training__compile=True)


def test_a_trial_for_several_workers_is_not_trained_by_one(labelled_root):
    config = tiny_config(labelled_root, trial__workers=2)
    with pytest.raises(ValueError, match=r"trial.workers=2 must be trained by as many processes"):
        run_trial(config, open_development(config.data), on_epoch_end=lambda *_: None)
