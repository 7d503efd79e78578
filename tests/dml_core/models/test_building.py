"""Tests of building a model: backbones, the small convnet, and the embedding model."""

import pytest
import timm
import torch
import torchvision
from torch import nn

from dml_core.config import TrialConfig, resolve_trial_config
from dml_core.models import ModelError, build_model
from dml_core.models.blocks import as_sequential
from dml_core.models.building import build_backbone, build_convnet
from dml_core.models.embedding_model import PIXEL_STATISTICS, PixelScaling

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


@pytest.mark.parametrize(
    ("backbone", "pooling"),
    [("convnet", "avg"), ("torchvision:resnet18", "avg"), ("timm:test_vit", "cls"),
     ("timm:test_byobnet", "avg")],
)  # fmt: skip
def test_same_seed_gives_the_same_bits(backbone, pooling):
    settings = {**TINY_RESNET, "model.backbone": backbone, "model.pooling": pooling}
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
def test_pixel_scaling_is_that_of_the_trunk_or_the_configured_one(settings, mean):
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
    settings = {
        **TINY_RESNET, "model.backbone": "torchvision:vit_b_32", "trunk.train": "from:blocks.0",
        "model.pooling": "own",
    }  # fmt: skip
    with pytest.raises(ModelError, match=r"model\.backbone=torchvision:vit_b_32 are unknown"):
        build(settings)


def test_images_too_small_for_the_trunk_are_refused():
    settings = {**TINY_RESNET, "model.backbone": "torchvision:inception_v3"}
    with pytest.raises(ModelError, match=r"inception_v3 must accept images of 32 px"):
        build(settings)


def test_what_is_wrong_with_a_model_is_a_value_error():
    assert issubclass(ModelError, ValueError)


def build_trunk(name, *, weights="none", in_channels=3, input_size_px=64, pooling="own"):
    return build_backbone(
        name, weights=weights, width=4, in_channels=in_channels, input_size_px=input_size_px,
        pooling=pooling,
    )  # fmt: skip


def features_of(backbone, input_size_px=64):
    images = torch.randn(2, backbone.in_channels, input_size_px, input_size_px)
    with torch.no_grad():
        return as_sequential(backbone.blocks).eval()(images)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("convnet", (2, 16, 16, 16)),
        ("torchvision:resnet18", (2, 512, 2, 2)),
        ("torchvision:mobilenet_v3_small", (2, 576, 2, 2)),
        ("timm:test_resnet", (2, 96, 2, 2)),
        ("timm:test_byobnet", (2, 256, 2, 2)),  # Its children are its blocks.
        ("timm:test_vit", (2, 64)),  # Tokens, pooled by the last block.
        ("timm:test_mambaout", (2, 64, 2, 2)),  # Its map has the channels last.
    ],
)
def test_trunk_gives_a_map_or_a_vector(name, shape):
    pooling = "cls" if name == "timm:test_vit" else "avg"
    assert features_of(build_trunk(name, pooling=pooling)).shape == shape


def test_transformer_features_are_those_of_timm():
    torch.manual_seed(0)
    backbone = build_trunk("timm:test_vit")
    torch.manual_seed(0)
    model = timm.create_model("test_vit", num_classes=0, img_size=64).eval()
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        found = as_sequential(backbone.blocks).eval()(images)
        assert torch.equal(found, model(images))


def test_torchvision_transformer_gives_its_class_token():
    backbone = build_trunk("torchvision:vit_b_32")
    model = backbone.blocks["model"].eval()
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        patches = model._process_input(images)
        tokens = model.encoder(torch.cat([model.class_token, patches], dim=1))
        assert torch.equal(model(images), tokens[:, 0])


def test_convnet_takes_the_channels_of_the_images():
    assert build_trunk("convnet", in_channels=1).in_channels == 1
    assert build_trunk("convnet", in_channels=3).in_channels == 3


@pytest.mark.parametrize(
    ("name", "scaling"),
    [
        ("convnet", "half"),
        ("torchvision:resnet18", "imagenet"),
        ("torchvision:googlenet", "half"),
        ("timm:resnet18", "imagenet"),
        ("timm:tf_efficientnet_lite0", "half"),
    ],
)
def test_trunk_knows_how_its_pixels_were_scaled(name, scaling):
    statistics = build_trunk(name).statistics
    assert statistics.mean == pytest.approx(PIXEL_STATISTICS[scaling].mean)
    assert statistics.std == pytest.approx(PIXEL_STATISTICS[scaling].std)


def test_half_scaling_of_googlenet_is_what_torchvision_does_inside():
    # With its ImageNet weights torchvision builds it so, and rescales imagenet-scaled pixels.
    knobs = {"aux_logits": False, "init_weights": False, "transform_input": True}
    model = torchvision.models.googlenet(**knobs)
    images = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    imagenet, half = (
        PixelScaling(PIXEL_STATISTICS[kind], in_channels=3, out_channels=3)
        for kind in ("imagenet", "half")
    )
    torch.testing.assert_close(half(images), model._transform_input(imagenet(images)))


def test_no_classifier_stays_in_the_trunk():
    names = as_sequential(build_trunk("torchvision:resnet18").blocks).state_dict()
    assert not [name for name in names if "fc" in name]


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("torchvision:resnet19", "resnet18"),
        ("timm:tf_efficientnet_lite9", "tf_efficientnet_lite0"),
        ("timm:resnet18.a9_in1k", "resnet18.a1_in1k"),
        ("torchvision:fasterrcnn_resnet50_fpn", "resnet50"),
    ],
)
def test_unknown_name_gets_near_ones(name, near):
    with pytest.raises(ModelError, match=rf"Got {name}\. Similar names: .*{near}"):
        build_trunk(name)


def test_unknown_name_with_nothing_near_says_how_to_list_them():
    with pytest.raises(ModelError, match=r"Got timm:qqqqqqqqqqqq\. List them all with timm's"):
        build_trunk("timm:qqqqqqqqqqqq")


def test_convnet_has_no_imagenet_weights():
    with pytest.raises(ModelError, match=r"Got model\.backbone=convnet"):
        build_trunk("convnet", weights="imagenet")


def test_failed_download_of_torchvision_says_what_to_do(monkeypatch, tmp_path):
    # A cache folder below a file cannot be made, so the download fails before any network.
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "file" / "cache"))
    with pytest.raises(ModelError, match=r"weights of torchvision:resnet18.*set model\.weights to"):
        build_trunk("torchvision:resnet18", weights="imagenet")


def test_failed_download_of_timm_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    with pytest.raises(ModelError, match=r"weights of timm:resnet18.*set model\.weights to"):
        build_trunk("timm:resnet18.a1_in1k", weights="imagenet")


def test_size_that_no_transformer_takes_is_refused():
    with pytest.raises(ModelError, match=r"torchvision:vit_b_32 cannot be built.*input_size_px"):
        build_trunk("torchvision:vit_b_32", input_size_px=50)


def test_convnet_has_three_blocks_of_doubling_channels():
    convnet = build_convnet(in_channels=1, width=8)
    assert list(dict(convnet.named_children())) == ["stage1", "stage2", "stage3"]
    channels = [m.out_channels for m in convnet.modules() if isinstance(m, nn.Conv2d)]
    assert channels == [8, 16, 32]


# Two blocks halve the side, rounding down: 16 -> 8 -> 4, 28 -> 14 -> 7, 35 -> 17 -> 8.
@pytest.mark.parametrize(("side_px", "left_px"), [(16, 4), (28, 7), (35, 8)])
def test_convnet_quarters_the_side(side_px, left_px):
    convnet = build_convnet(in_channels=3, width=4)
    features = convnet(torch.zeros(2, 3, side_px, side_px))
    assert features.shape == (2, 16, left_px, left_px)


def test_block_equals_convolution_batch_norm_relu_and_then_maximum():
    torch.manual_seed(0)
    block = build_convnet(in_channels=2, width=4).stage1
    convolution, batch_norm = block[0], block[1]
    nn.init.normal_(batch_norm.weight)  # Negative weights too, where order could matter.
    images = torch.randn(3, 2, 16, 16)
    expected = nn.functional.max_pool2d(torch.relu(batch_norm(convolution(images))), 2)
    assert torch.equal(block(images), expected)
