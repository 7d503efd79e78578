"""Building losses by name: completeness, knobs, refusals."""

from typing import get_args

import pytest

from dml_core import losses
from dml_core.config import ConfigError
from dml_core.config.losses import (
    CONTINUOUS_LOSSES,
    LossConfig,
    OwnLossConfig,
    PmlConfig,
    ProxyAnchorConfig,
)
from dml_core.losses.proxy_anchor import ProxyAnchorLoss
from dml_core.losses.registry import LOSSES, build_loss, build_loss_from_config

SIZES = {"num_classes": 5, "embedding_dim": 4}


def test_every_config_has_a_loss_and_every_loss_its_config():
    kinds = [get_args(tagged)[0] for tagged in get_args(get_args(LossConfig)[0])]
    by_name = {kind.model_fields["name"].default: kind for kind in kinds}
    assert by_name.pop("pml:TripletMarginLoss") is PmlConfig
    assert by_name.pop("python:my_package.my_module:MyLoss") is OwnLossConfig
    assert {name: loss.config_class for name, loss in LOSSES.items()} == by_name


def test_every_loss_is_a_public_name():
    assert {loss.__name__ for loss in LOSSES.values()} <= set(losses.__all__)


@pytest.mark.parametrize("name", LOSSES)
def test_continuous_labels_are_declared_as_in_the_config(name: str):
    loss = build_loss(name, **SIZES)
    assert loss.uses_continuous_labels == (name in CONTINUOUS_LOSSES)


def test_knobs_reach_the_loss_and_the_rest_have_their_defaults():
    loss = build_loss("proxy_anchor", **SIZES, alpha=16)
    assert isinstance(loss, ProxyAnchorLoss)
    assert (loss.config.alpha, loss.config.delta) == (16.0, ProxyAnchorConfig().delta)
    assert loss.proxies.shape == (5, 4)


def test_a_config_builds_its_loss():
    loss = build_loss_from_config(ProxyAnchorConfig(delta=0.3), **SIZES)
    assert isinstance(loss, ProxyAnchorLoss)
    assert loss.config.delta == 0.3


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"Got 'proxy_ancor'. Did you mean 'proxy_anchor'\?"):
        build_loss("proxy_ancor", **SIZES)


def test_an_unknown_knob_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"ProxyAnchorLoss has 1 .*\n.* alhpa is .* 'alpha'\?"):
        build_loss("proxy_anchor", **SIZES, alhpa=16)


def test_a_knob_of_another_loss_is_refused():
    with pytest.raises(ConfigError, match=r"margin is not a known parameter"):
        build_loss("proxy_anchor", **SIZES, margin=0.1)


def test_all_problems_come_at_once():
    with pytest.raises(ConfigError) as caught:
        build_loss("proxy_anchor", **SIZES, alpha=-1, delta="wide")
    assert len(caught.value.problems) == 2
    assert "alpha must be > 0" in str(caught.value)
    assert "-1" in str(caught.value)
    assert "'wide'" in str(caught.value)
