"""From a configuration to a model."""

import pytest
import torch
from torch import nn

from dml_core.config import TrialConfig, resolve_trial_config
from dml_core.models import ModelError, build_model

SMALL = {"model.width": 4, "model.embedding_dim": 8}
TINY_RESNET = {**SMALL, "model.backbone": "timm:test_resnet", "augmentation.input_size_px": 32}


def build(settings, *, in_channels=1, seed=0):
    torch.manual_seed(seed)
    return build_model(resolve_trial_config(settings), in_channels=in_channels)


def draw_images(channels=1, side_px=28):
    return torch.randint(0, 256, (4, channels, side_px, side_px), dtype=torch.uint8)


def test_default_trial_builds_a_model_that_embeds():
    config = TrialConfig()
    embeddings = build_model(config, in_channels=1)(draw_images())
    assert embeddings.shape == (4, config.model.embedding_dim)


@pytest.mark.parametrize("backbone", ["convnet", "torchvision:resnet18", "timm:test_vit"])
def test_same_seed_gives_the_same_bits(backbone):
    settings = {**TINY_RESNET, "model.backbone": backbone}
    first, again, other = (build(settings, seed=seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_building_leaves_the_same_random_state_whatever_learns():
    draws = []
    for train in ("all", "from:layer2", "none"):
        build({**TINY_RESNET, "trunk.train": train})
        draws.append(torch.rand(1).item())
    assert len(set(draws)) == 1


def test_model_comes_in_training_mode_with_fresh_statistics():
    model = build(SMALL)
    assert model.training
    assert all(module.training for module in model.trunk.modules())
    assert model.trunk.stage1[1].num_batches_tracked.item() == 0


@pytest.mark.parametrize(
    ("settings", "is_unit"),
    [
        ({"loss.name": "proxy_anchor"}, True),
        ({"loss.name": "proxy_anchor", "model.normalize": "no"}, False),
        ({"loss.name": "log_ratio", "data.continuous_labels": ["rotation"]}, False),
    ],
)
def test_embeddings_are_normalized_as_the_loss_wants(settings, is_unit):
    model = build({**SMALL, **settings})
    lengths = model(draw_images()).norm(dim=1)
    assert torch.allclose(lengths, torch.ones(4), atol=1e-4) is is_unit


def test_head_follows_the_configuration():
    head = build(
        {**SMALL, "model.pooling": "max", "model.layer_norm": True, "model.projection": "none",
         "model.embedding_dim": 16}
    ).head  # fmt: skip
    assert head.pool.pooling == "max"
    assert isinstance(head.layer_norm, nn.LayerNorm)
    assert list(head.parameters()) == []


def test_projection_none_names_both_dimensions():
    with pytest.raises(ModelError, match=r"trunk's 16 channels. Got model.embedding_dim=8"):
        build({**SMALL, "model.projection": "none"})


@pytest.mark.parametrize("in_channels", [1, 3])
def test_library_trunk_takes_gray_and_color(in_channels):
    model = build(TINY_RESNET, in_channels=in_channels)
    assert model(draw_images(in_channels, 32)).shape == (4, 8)


def test_gray_image_embeds_as_its_three_equal_channels():
    gray, color = build(TINY_RESNET, in_channels=1), build(TINY_RESNET, in_channels=3)
    images = draw_images(1, 32)
    found, expected = gray.eval()(images), color.eval()(images.expand(-1, 3, -1, -1))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("settings", "mean"),
    [
        ({}, 127.5),
        ({"model.pixel_scaling": "unit"}, 0.0),
        ({"model.pixel_scaling": "caffe"}, 103.939),
    ],
)
def test_pixel_scaling_is_the_trunks_or_the_one_asked_for(settings, mean):
    model = build({**SMALL, **settings}, in_channels=3)
    assert model.scaling.mean.flatten()[0].item() == pytest.approx(mean)


def test_package_weights_build_a_model_cut_before_its_last_blocks():
    model = build(
        {
            "model.backbone": "timm:tf_efficientnet_lite0",
            "model.weights": "package:efficientnet_lite0",
            "augmentation.input_size_px": 112,
            "trunk.train": "from:blocks.5",
        },
        in_channels=3,
    )
    activations = model.frozen_activations(draw_images(3, 112))
    assert activations.shape == (4, 112, 7, 7)
    assert model.scaling.mean.flatten().tolist() == [127.5] * 3
    assert model.forward_from(activations).shape == (4, 128)


def test_block_of_an_unknown_trunk_is_refused_by_name():
    settings = {**TINY_RESNET, "model.backbone": "timm:test_vit", "trunk.train": "from:blocks.0"}
    with pytest.raises(ModelError, match=r"model\.backbone=timm:test_vit are unknown"):
        build(settings)


def test_images_too_small_for_the_trunk_are_refused():
    settings = {**TINY_RESNET, "model.backbone": "torchvision:inception_v3"}
    with pytest.raises(ModelError, match=r"inception_v3 must take images of 32 px"):
        build(settings)


def test_what_is_wrong_with_a_model_is_a_value_error():
    assert issubclass(ModelError, ValueError)
