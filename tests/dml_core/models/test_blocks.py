"""Trunks as named blocks."""

import pytest
import timm
import torch
import torchvision
from torch import nn

from dml_core.models.blocks import ModelError, as_sequential, cut_blocks, find_blocks

TORCHVISION_KNOBS = {"googlenet": {"init_weights": False, "aux_logits": False}}


def build_torchvision(name: str) -> nn.Module:
    torch.manual_seed(0)
    return torchvision.models.get_model(name, **TORCHVISION_KNOBS.get(name, {})).eval()


def build_timm(name: str) -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model(name).eval()


def torchvision_features(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    """Returns what enters the model's own pooling when it runs as a whole."""
    seen = []
    pool = model.avgpool
    pool.register_forward_pre_hook(lambda module, arguments: seen.append(arguments[0]))
    model(images)
    return seen[0]


@pytest.mark.parametrize(
    "name",
    [
        "resnet18",
        "mobilenet_v3_small",
        "efficientnet_b0",
        "googlenet",
        "convnext_tiny",
        "regnet_x_400mf",
    ],
)
def test_blocks_compute_what_enters_the_pooling_of_torchvision(name):
    model = build_torchvision(name)
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        expected = torchvision_features(model, images)
        assert expected.abs().max() > 0
        assert torch.equal(as_sequential(find_blocks(model))(images), expected)


@pytest.mark.parametrize(
    "name", ["densenet121", "shufflenet_v2_x0_5", "mnasnet0_5", "mobilenet_v2"]
)
def test_blocks_then_mean_and_classifier_are_the_torchvision_model(name):
    model = build_torchvision(name)
    images = torch.randn(2, 3, 64, 64)
    classifier = getattr(model, "classifier", None) or model.fc
    with torch.no_grad():
        features = as_sequential(find_blocks(model))(images)
        torch.testing.assert_close(classifier(features.mean(dim=(2, 3))), model(images))


def test_blocks_compute_what_enters_the_pooling_of_a_small_swin():
    torch.manual_seed(0)
    model = torchvision.models.SwinTransformer([4, 4], 16, [1, 1], [1, 2], [4, 4]).eval()
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        expected = torchvision_features(model, images)
        assert torch.equal(as_sequential(find_blocks(model))(images), expected)
    assert list(find_blocks(model))[-2:] == ["features.3", "norm"]


def test_blocks_then_classifier_are_the_squeezenet_of_torchvision():
    model = build_torchvision("squeezenet1_1")
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        features = as_sequential(find_blocks(model))(images)
        assert torch.equal(model.classifier(features).flatten(1), model(images))


@pytest.mark.parametrize(
    "name",
    [
        *("resnet18", "resnet26d", "tf_efficientnet_lite0", "convnext_atto", "regnetx_002"),
        *("mobilenetv3_small_050", "test_convnext", "test_efficientnet", "densenet121"),
    ],
)
def test_blocks_compute_the_forward_features_of_timm(name):
    model = build_timm(name)
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        expected = model.forward_features(images)
        assert expected.abs().max() > 0
        assert torch.equal(as_sequential(find_blocks(model))(images), expected)


def test_blocks_compute_the_forward_features_of_inception_v3():
    model = build_timm("inception_v3")
    images = torch.randn(1, 3, 96, 96)
    with torch.no_grad():
        expected = model.forward_features(images)
        assert torch.equal(as_sequential(find_blocks(model))(images), expected)


def test_last_block_takes_in_a_norm_that_comes_before_the_head():
    model = timm.create_model("test_convnext", head_norm_first=True).eval()
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        expected = model.forward_features(images)
        assert torch.equal(as_sequential(find_blocks(model))(images), expected)
    assert list(find_blocks(model))[-1] == "stages.3"


def test_blocks_are_named_after_the_parts_of_the_trunk():
    efficientnet = find_blocks(build_timm("tf_efficientnet_lite0"))
    assert list(efficientnet) == ["stem", *(f"blocks.{i}" for i in range(7)), "head"]
    assert list(find_blocks(build_torchvision("resnet18"))) == [
        *("stem", "layer1", "layer2", "layer3", "layer4")
    ]
    googlenet = list(find_blocks(build_torchvision("googlenet")))
    assert googlenet[0] == "conv1"
    assert googlenet[-1] == "inception5b"
    assert list(find_blocks(build_timm("convnext_atto"))) == [
        *("stem", "stages.0", "stages.1", "stages.2", "stages.3")
    ]


def test_a_class_without_a_recipe_has_no_blocks():
    assert find_blocks(build_timm("test_vit")) is None


def test_blocks_of_a_subclass_are_none_since_it_may_compute_otherwise():
    class Changed(torchvision.models.ResNet):
        pass

    block = torchvision.models.resnet.BasicBlock
    assert find_blocks(Changed(block, [1, 1, 1, 1])) is None


THREE = {"stem": nn.Identity(), "blocks.0": nn.ReLU(), "blocks.1": nn.Sigmoid()}


@pytest.mark.parametrize(
    ("train", "frozen", "trunk"),
    [
        ("all", [], ["stem", "blocks.0", "blocks.1"]),
        ("none", ["stem", "blocks.0", "blocks.1"], []),
        ("from:stem", [], ["stem", "blocks.0", "blocks.1"]),
        ("from:blocks.0", ["stem"], ["blocks.0", "blocks.1"]),
        ("from:blocks.1", ["stem", "blocks.0"], ["blocks.1"]),
    ],
)
def test_cut_keeps_the_order_and_loses_no_block(train, frozen, trunk):
    parts = cut_blocks(THREE, train, backbone="timm:x")
    assert [list(part) for part in parts] == [frozen, trunk]


def test_cut_at_an_unknown_block_lists_the_blocks():
    message = r"from:blocks.7. Did you mean 'blocks.\d'\? Its blocks are stem, blocks.0, blocks.1"
    with pytest.raises(ModelError, match=message):
        cut_blocks(THREE, "from:blocks.7", backbone="timm:x")


def test_cut_of_a_trunk_without_known_blocks_names_the_backbone():
    with pytest.raises(ModelError, match=r"model.backbone=timm:test_vit are unknown"):
        cut_blocks({"model": nn.Identity()}, "from:blocks.1", backbone="timm:test_vit")


def test_sequential_replaces_the_dots_that_torch_forbids():
    assert list(dict(as_sequential(THREE).named_children())) == ["stem", "blocks_0", "blocks_1"]
