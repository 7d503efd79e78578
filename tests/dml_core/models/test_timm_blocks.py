"""Networks of timm as blocks: whole, cut, and pooled."""

import numpy as np
import pytest
import timm
import torch
from torch import nn

from dml_core.config.trial import ModelConfig
from dml_core.models.blocks import ModelError, as_sequential
from dml_core.models.building import build_backbone, build_embedding_model
from dml_core.models.timm_blocks import find_map_blocks, find_token_blocks, say_own_pooling

# Small variants of published networks, by the arguments of timm.
SMALL = {"depth": 2, "embed_dim": 32, "num_heads": 2, "num_classes": 0}
TRANSFORMERS = {
    "vit_tiny_patch16_224": 32,
    "vit_small_patch14_dinov2": 28,
    "vit_small_patch14_reg4_dinov2": 28,
    "vit_small_patch16_dinov3": 32,
    "vit_base_patch16_siglip_256": 32,
    "vit_base_patch16_siglip_gap_256": 32,
    "eva02_tiny_patch14_224": 28,
    "eva_giant_patch14_224": 28,
}
FAMILIES = {
    "timm:test_vit": "from:blocks.3",
    "timm:test_convnext": "from:stages.2",
    "timm:test_efficientnet": "from:blocks.3",
    "timm:test_resnet": "from:layer3",
    "timm:test_byobnet": "from:stages.2",
    "timm:test_mambaout": "from:stages.2",
}


def draw(size_px: int, num_images: int = 2) -> torch.Tensor:
    stream = torch.Generator().manual_seed(7)
    return torch.randn(num_images, 3, size_px, size_px, generator=stream)


def make_transformer(name: str, **knobs: object) -> nn.Module:
    torch.manual_seed(0)
    model = timm.create_model(name, img_size=TRANSFORMERS[name], **{**SMALL, **knobs}).eval()
    # A layer scale of 1e-5 would hide the blocks, and zero positions a missing embedding.
    stream = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=stream))
    return model


def compute(blocks: dict[str, nn.Module], images: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return as_sequential(blocks).eval()(images)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_blocks_of_a_transformer_are_the_whole_transformer(name):
    model, images = make_transformer(name), draw(TRANSFORMERS[name])
    blocks = find_token_blocks(model, "own", backbone=name)
    assert list(blocks) == ["embed", "blocks.0", "blocks.1", "pool"]
    with torch.no_grad():
        assert torch.equal(compute(blocks, images), model(images))
    held = {id(p) for p in as_sequential(blocks).parameters()}
    assert held == {id(p) for p in model.parameters()}


@pytest.mark.parametrize("name", ["vit_small_patch14_reg4_dinov2", "vit_small_patch16_dinov3"])
def test_tokens_are_pooled_as_model_pooling_says(name):
    model, images = make_transformer(name), draw(TRANSFORMERS[name])
    with torch.no_grad():
        tokens = model.forward_features(images)
        # One class token and four registers come before the patches.
        cls, mean = model.fc_norm(tokens[:, 0]), model.fc_norm(tokens[:, 5:].mean(dim=1))
    expected = {"cls": cls, "mean": mean, "cls+mean": torch.cat([cls, mean], dim=1)}
    for pooling, value in expected.items():
        blocks = find_token_blocks(model, pooling, backbone=name)
        torch.testing.assert_close(compute(blocks, images), value)


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("vit_small_patch14_dinov2", "cls"),
        ("vit_small_patch16_dinov3", "mean"),
        ("vit_base_patch16_siglip_256", r"own \(attention\)"),
    ],
)
def test_a_pooling_of_maps_is_refused_with_the_networks_own(name, own):
    with pytest.raises(ModelError, match=rf"Got avg\+max. The network's own pooling is {own}\."):
        find_token_blocks(make_transformer(name), "avg+max", backbone=name)


def test_a_network_without_a_class_token_has_no_pooling_by_it():
    model = make_transformer("vit_base_patch16_siglip_256")
    with pytest.raises(ModelError, match=r"must be one of mean, own .* none for the class"):
        find_token_blocks(model, "cls", backbone="timm:siglip")


def test_learned_rotations_of_all_blocks_are_not_cut():
    model = timm.create_model("vit_small_patch16_rope_mixed_224", img_size=32, **SMALL)
    assert find_token_blocks(model, "own", backbone="x") is None


def make_model(backbone: str, train: str, pooling: str, embedding_dim: int = 8):
    torch.manual_seed(0)
    config = ModelConfig(backbone=backbone, embedding_dim=embedding_dim, pooling=pooling)
    return build_embedding_model(
        config, train=train, in_channels=3, input_size_px=32, normalize=True
    ).eval()


@pytest.mark.parametrize("backbone", FAMILIES)
@pytest.mark.parametrize("pooling", ["own", "other"])
def test_a_cut_network_equals_the_whole_network(backbone, pooling):
    if pooling == "other":
        pooling = "cls+mean" if backbone == "timm:test_vit" else "avg+max"
    images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    whole = make_model(backbone, "all", pooling)
    cut = make_model(backbone, FAMILIES[backbone], pooling)
    frozen = make_model(backbone, "none", pooling)
    assert len(cut.frozen) > 1
    assert len(cut.trunk) > 1
    with torch.no_grad():
        expected = whole(images)
        cached = cut.frozen_activations(images)
        torch.testing.assert_close(cut.forward_from(cached), expected)
        torch.testing.assert_close(frozen.forward_from(frozen.frozen_activations(images)), expected)
        # Half precision is what a cache holds.
        rounded = cut.forward_from(torch.from_numpy(cached.numpy().astype(np.float16)))
        torch.testing.assert_close(rounded, expected, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("backbone", FAMILIES)
def test_own_pooling_gives_the_features_of_timm(backbone):
    torch.manual_seed(0)
    found = build_backbone(
        backbone, weights="none", width=4, in_channels=3, input_size_px=32, pooling="own"
    )
    torch.manual_seed(0)
    name = backbone.removeprefix("timm:")
    size = {"img_size": 32} if name == "test_vit" else {}
    model = timm.create_model(name, num_classes=0, **size).eval()
    with torch.no_grad():
        assert torch.equal(compute(found.blocks, draw(32)), model(draw(32)))


def test_a_map_with_its_channels_last_is_turned():
    torch.manual_seed(0)
    model = timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=32, window_size=4, depths=(1, 1), num_heads=(1, 2),
        embed_dim=16, num_classes=0,
    ).eval()  # fmt: skip
    blocks = find_map_blocks(model, "avg", size_px=32)
    assert list(blocks) == ["patch_embed", "layers.0", "layers.1", "norm", "permute"]
    features = compute(blocks, draw(32))
    assert features.shape == (2, 32, 4, 4)
    with torch.no_grad():
        torch.testing.assert_close(features.mean(dim=(2, 3)), model(draw(32)))
    assert say_own_pooling(model) == "avg"


def test_children_that_leave_a_parameter_out_are_no_blocks():
    model = timm.create_model("test_byobnet", num_classes=0).eval()
    assert len(find_map_blocks(model, "avg", size_px=32)) > 1
    # As a position embedding that is zero before training.
    model.register_parameter("shift", nn.Parameter(torch.zeros(1)))
    assert list(find_map_blocks(model, "avg", size_px=32)) == ["model"]


@pytest.mark.parametrize(
    ("backbone", "pooling", "message"),
    [
        ("timm:test_resnet", "cls", r"one of avg, max, avg\+max, own .*Got cls.* pooling is avg"),
        ("convnet", "own", r"one of avg, max, avg\+max for model.backbone=convnet.*Got own"),
        ("torchvision:vit_b_32", "avg+max", r"must be own .*vit_b_32.*avg\+max would have no eff"),
    ],
)
def test_a_pooling_without_effect_is_refused(backbone, pooling, message):
    with pytest.raises(ModelError, match=message):
        make_model(backbone, "all", pooling)


@pytest.mark.parametrize(("size_px", "near"), [(30, "16 or 32"), (12, "16")])
def test_images_that_do_not_fill_the_patches_are_refused(size_px, near):
    config = ModelConfig(backbone="timm:test_vit", pooling="cls")
    with pytest.raises(
        ModelError, match=rf"multiple of 16, the patch .*Got {size_px}. Set it to {near}\."
    ):
        build_embedding_model(
            config, train="all", in_channels=3, input_size_px=size_px, normalize=True
        )
