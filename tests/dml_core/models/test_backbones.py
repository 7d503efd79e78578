"""Trunks by name."""

import pytest
import timm
import torch
import torchvision

from dml_core.models.blocks import ModelError, as_sequential
from dml_core.models.building import build_backbone
from dml_core.models.embedding_model import PIXEL_STATISTICS, PixelScaling


def build(name, *, weights="none", in_channels=3, input_size_px=64):
    return build_backbone(
        name, weights=weights, width=4, in_channels=in_channels, input_size_px=input_size_px
    )


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
        ("timm:test_byobnet", (2, 256, 2, 2)),  # Blocks unknown, but it has a feature map.
        ("timm:test_vit", (2, 64)),  # Tokens, pooled by the model itself.
        ("timm:test_mambaout", (2, 256)),  # Its map has the channels last, so it pools itself.
    ],
)
def test_trunk_gives_a_map_or_a_vector(name, shape):
    assert features_of(build(name)).shape == shape


def test_transformer_features_are_those_of_timm():
    torch.manual_seed(0)
    backbone = build("timm:test_vit")
    torch.manual_seed(0)
    model = timm.create_model("test_vit", num_classes=0, img_size=64).eval()
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        found = as_sequential(backbone.blocks).eval()(images)
        assert torch.equal(found, model(images))


def test_torchvision_transformer_gives_its_class_token():
    backbone = build("torchvision:vit_b_32")
    model = backbone.blocks["model"].eval()
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        patches = model._process_input(images)
        tokens = model.encoder(torch.cat([model.class_token, patches], dim=1))
        assert torch.equal(model(images), tokens[:, 0])


def test_convnet_takes_the_channels_of_the_images():
    assert build("convnet", in_channels=1).in_channels == 1
    assert build("convnet", in_channels=3).in_channels == 3


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
    statistics = build(name).statistics
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
    names = as_sequential(build("torchvision:resnet18").blocks).state_dict()
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
    with pytest.raises(ModelError, match=rf"Got {name}\. Near names: .*{near}"):
        build(name)


def test_unknown_name_with_nothing_near_says_how_to_list_them():
    with pytest.raises(ModelError, match=r"Got timm:qqqqqqqqqqqq\. List them all with timm's"):
        build("timm:qqqqqqqqqqqq")


def test_convnet_has_no_imagenet_weights():
    with pytest.raises(ModelError, match=r"Got model\.backbone=convnet"):
        build("convnet", weights="imagenet")


def test_failed_download_of_torchvision_says_what_to_do(monkeypatch, tmp_path):
    # A cache folder below a file cannot be made, so the download fails before any network.
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "file" / "cache"))
    with pytest.raises(ModelError, match=r"weights of torchvision:resnet18.*set model\.weights to"):
        build("torchvision:resnet18", weights="imagenet")


def test_failed_download_of_timm_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    with pytest.raises(ModelError, match=r"weights of timm:resnet18.*set model\.weights to"):
        build("timm:resnet18.a1_in1k", weights="imagenet")


def test_size_that_no_transformer_takes_is_refused():
    with pytest.raises(ModelError, match=r"torchvision:vit_b_32 cannot be built.*input_size_px"):
        build("torchvision:vit_b_32", input_size_px=50)
