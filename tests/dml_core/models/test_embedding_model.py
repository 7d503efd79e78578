"""Tests of the embedding model, its pixel scaling and its head."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dml_core.config.trial import ModelConfig
from dml_core.models import EmbeddingModel, build_embedding_model
from dml_core.models.blocks import ModelError
from dml_core.models.embedding_model import (
    PIXEL_STATISTICS,
    EmbeddingHead,
    GlobalPooling,
    PixelScaling,
    PixelStatistics,
    l2_normalize,
)


def build(backbone="convnet", *, train="all", seed=0, **knobs) -> EmbeddingModel:
    torch.manual_seed(seed)
    if backbone == "timm:test_vit":
        knobs.setdefault("pooling", "cls")
    config = ModelConfig(backbone=backbone, width=4, embedding_dim=8, **knobs)
    return build_embedding_model(
        config, train=train, in_channels=3, input_size_px=32, normalize=True
    )


def draw_images(seed: int = 0, num_images: int = 4) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (num_images, 3, 32, 32), dtype=torch.uint8, generator=generator)


def snapshot(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def changed(module: nn.Module, before: dict[str, torch.Tensor]) -> set[str]:
    return {
        name
        for name, tensor in module.state_dict().items()
        if not torch.equal(tensor, before[name])
    }


@pytest.mark.parametrize(
    ("backbone", "train"),
    [
        *(("convnet", train) for train in ("all", "from:stage2", "none")),
        *(("timm:test_resnet", train) for train in ("all", "from:layer3", "none")),
        *(("timm:test_vit", train) for train in ("all", "from:blocks.2", "none")),
    ],
)
def test_forward_is_forward_from_the_frozen_activations(backbone, train):
    model = build(backbone, train=train).eval()
    images = draw_images()
    embeddings = model(images)
    assert embeddings.shape == (4, 8)
    assert torch.equal(embeddings, model.forward_from(model.frozen_activations(images)))


def test_cut_does_not_change_the_embeddings():
    images = draw_images()
    embeddings = [
        build("timm:test_resnet", train=train).eval()(images)
        for train in ("all", "from:layer3", "none")
    ]
    assert torch.equal(embeddings[0], embeddings[1])
    assert torch.equal(embeddings[0], embeddings[2])


def test_frozen_activations_are_scaled_pixels_a_map_or_a_pooled_vector():
    images = draw_images()
    shapes = [
        tuple(build(train=train).frozen_activations(images).shape)
        for train in ("all", "from:stage2", "none")
    ]
    assert shapes == [(4, 3, 32, 32), (4, 4, 16, 16), (4, 16)]


def test_frozen_activations_have_no_graph():
    assert not build(train="from:stage2").frozen_activations(draw_images()).requires_grad


def test_kept_activations_may_be_in_half_precision():
    model = build(train="from:stage2").eval()
    images = draw_images()
    kept = model.frozen_activations(images).half()
    torch.testing.assert_close(model.forward_from(kept), model(images), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("train", ["all", "from:stage2", "none"])
def test_training_changes_exactly_what_learns(train):
    model = build(train=train)
    before = {part: snapshot(getattr(model, part)) for part in ("frozen", "trunk", "head")}
    groups = model.parameter_groups()
    optimizer = torch.optim.SGD([*groups["trunk"], *groups["head"]], lr=0.1)
    model.set_training(True, freeze_batch_norm=False)
    model(draw_images())[:, 0].sum().backward()
    optimizer.step()
    assert changed(model.frozen, before["frozen"]) == set()
    assert changed(model.trunk, before["trunk"]) == set(before["trunk"])
    assert changed(model.head, before["head"]) == {"projection.weight", "projection.bias"}


def test_parameter_groups_hold_each_learning_parameter_once():
    model = build("timm:test_resnet", train="from:layer3")
    groups = model.parameter_groups()
    listed = [id(parameter) for group in groups.values() for parameter in group]
    learning = [id(p) for p in model.parameters() if p.requires_grad]
    assert sorted(listed) == sorted(learning)
    assert len(learning) < len(list(model.parameters()))


def test_parameter_groups_of_a_frozen_trunk_hold_the_head_alone():
    groups = build(train="none").parameter_groups()
    assert groups["trunk"] == []
    assert [tuple(p.shape) for p in groups["head"]] == [(8, 16), (8,)]


def test_frozen_blocks_only_evaluate():
    model = build(train="from:stage2")
    for mode in (True, False):
        model.set_training(mode, freeze_batch_norm=False)
        assert not any(module.training for module in model.frozen.modules())
        assert all(module.training is mode for module in model.trunk.modules())
        assert model.head.training is mode


def test_frozen_batch_norm_keeps_its_statistics_and_learns_its_weight():
    model = build("timm:test_resnet")
    before = snapshot(model.trunk)
    optimizer = torch.optim.SGD(model.parameter_groups()["trunk"], lr=0.1)
    model.set_training(True, freeze_batch_norm=True)
    model(draw_images())[:, 0].sum().backward()
    optimizer.step()
    moved = changed(model.trunk, before)
    assert {"stem.bn1.weight", "stem.bn1.bias"} <= moved
    assert not [name for name in moved if "running" in name or "num_batches" in name]


def test_batch_norm_thaws_when_it_is_no_longer_frozen():
    model = build()
    model.set_training(True, freeze_batch_norm=True)
    assert not model.trunk.stage1[1].training
    model.set_training(True, freeze_batch_norm=False)
    assert model.trunk.stage1[1].training


def test_kept_activations_survive_a_cut_before_an_in_place_relu():
    model = build("torchvision:squeezenet1_1", train="from:features.1")
    activations = model.frozen_activations(draw_images())
    kept = activations.clone()
    model.forward_from(activations)
    assert kept.min() < 0  # Otherwise a ReLU could not be seen.
    assert torch.equal(activations, kept)


@pytest.mark.parametrize("train", ["all", "from:layer3", "none"])
def test_state_dict_makes_another_model_the_same(tmp_path, train):
    source = build("timm:test_resnet", train=train, seed=0)
    source(draw_images(1))  # Moves the running statistics of what learns.
    target = build("timm:test_resnet", train=train, seed=1)
    images = draw_images()
    assert not torch.equal(source.eval()(images), target.eval()(images))
    torch.save(source.state_dict(), tmp_path / "model.pt")
    target.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    assert torch.equal(source.eval()(images), target.eval()(images))


@pytest.mark.parametrize("backbone", ["convnet", "timm:test_resnet", "timm:test_vit"])
def test_model_trains_under_bfloat16_autocast(backbone):
    model = build(backbone)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        embeddings = model(draw_images())
    assert embeddings.dtype == torch.float32
    embeddings[:, 0].sum().backward()
    gradients = [p.grad for p in model.parameter_groups()["trunk"] if p.grad is not None]
    assert gradients
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
    torch.testing.assert_close(embeddings.norm(dim=1), torch.ones(4), rtol=1e-4, atol=1e-4)


def test_autocast_embeddings_are_near_those_of_float32():
    model = build().eval()
    images = draw_images()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        embeddings = model(images)
    torch.testing.assert_close(embeddings, model(images), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("backbone", ["convnet", "timm:test_resnet", "timm:test_convnext"])
def test_channels_last_gives_the_same_embeddings(backbone):
    model = build(backbone).eval()
    images = draw_images()
    expected = model(images)
    model = model.to(memory_format=torch.channels_last)
    found = model(images.to(memory_format=torch.channels_last))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_fingerprint_is_the_same_for_the_same_frozen_part():
    model = build(train="from:stage2")
    assert model.frozen_fingerprint() == build(train="from:stage2").frozen_fingerprint()
    other_head = build(train="from:stage2", layer_norm=True)
    assert model.frozen_fingerprint() == other_head.frozen_fingerprint()


def test_fingerprint_depends_on_weights_cut_pooling_and_scaling():
    models = [
        build(train="none"),
        build(train="none", seed=1),
        build(train="from:stage2"),
        build(train="none", pooling="max"),
        build(train="none", pixel_scaling="unit"),
    ]
    statistics_moved = copy.deepcopy(models[0])
    statistics_moved.frozen.stage1[1].running_mean += 1
    fingerprints = [model.frozen_fingerprint() for model in [*models, statistics_moved]]
    assert len(set(fingerprints)) == len(fingerprints)


def one_pixel(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.uint8).reshape(1, -1, 1, 1)


def scale(kind: str, *values: int) -> list[float]:
    scaling = PixelScaling(
        PIXEL_STATISTICS[kind], in_channels=len(values), out_channels=len(values)
    )
    return scaling(one_pixel(*values)).flatten().tolist()


def test_imagenet_scaling_has_a_worked_value():
    # red 255: (1 - 0.485) / 0.229 = 2.2489; green 0: -0.456 / 0.224 = -2.0357;
    # blue 51 = 0.2: (0.2 - 0.406) / 0.225 = -0.9156
    assert scale("imagenet", 255, 0, 51) == pytest.approx([2.2489, -2.0357, -0.9156], abs=1e-4)


def test_half_scaling_runs_from_minus_one_to_one():
    assert scale("half", 0, 255, 51) == pytest.approx([-1.0, 1.0, -0.6])


def test_unit_scaling_runs_from_zero_to_one():
    assert scale("unit", 0, 255, 51) == pytest.approx([0.0, 1.0, 0.2])


def test_caffe_scaling_puts_blue_first_and_subtracts_the_mean():
    # blue 30 - 103.939, green 20 - 116.779, red 10 - 123.68
    assert scale("caffe", 10, 20, 30) == pytest.approx([-73.939, -96.779, -113.68], abs=1e-3)


def test_gray_is_repeated_for_a_trunk_of_three_channels():
    scaling = PixelScaling(PIXEL_STATISTICS["imagenet"], in_channels=1, out_channels=3)
    repeated = scale("imagenet", 77, 77, 77)
    assert scaling(one_pixel(77)).flatten().tolist() == pytest.approx(repeated)


def test_gray_trunk_gets_the_average_statistics():
    # caffe: (103.939 + 116.779 + 123.68) / 3 = 114.7993
    assert scale("caffe", 100) == pytest.approx([-14.7993], abs=1e-3)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 255), st.sampled_from(sorted(PIXEL_STATISTICS)))
def test_float_images_scale_as_their_integers(value, kind):
    scaling = PixelScaling(PIXEL_STATISTICS[kind], in_channels=3, out_channels=3)
    pixel = one_pixel(value, 0, 255)
    assert torch.equal(scaling(pixel), scaling(pixel.float()))


def test_statistics_from_fractions_are_in_pixel_units():
    statistics = PixelStatistics.from_fractions((0.5, 0.2, 0.0), (1.0, 0.4, 0.2))
    assert statistics.mean == pytest.approx((127.5, 51.0, 0.0))
    assert statistics.std == pytest.approx((255.0, 102.0, 51.0))


def test_scaling_keeps_channels_last():
    scaling = PixelScaling(PIXEL_STATISTICS["half"], in_channels=3, out_channels=3)
    images = torch.zeros(2, 3, 8, 8, dtype=torch.uint8).to(memory_format=torch.channels_last)
    assert scaling(images).is_contiguous(memory_format=torch.channels_last)


def test_scaling_follows_the_dtype_of_its_module():
    scaling = PixelScaling(PIXEL_STATISTICS["half"], in_channels=1, out_channels=1).double()
    assert scaling(one_pixel(3)).dtype == torch.float64


def test_scaling_adds_nothing_to_a_checkpoint():
    scaling = PixelScaling(PIXEL_STATISTICS["half"], in_channels=1, out_channels=3)
    assert scaling.state_dict() == {}


@pytest.mark.parametrize("channels", [(3, 1), (2, 3), (4, 4)])
def test_scaling_refuses_channels_that_it_cannot_match(channels):
    with pytest.raises(ModelError, match=f"images of {channels[0]} and a trunk of {channels[1]}"):
        PixelScaling(PIXEL_STATISTICS["half"], in_channels=channels[0], out_channels=channels[1])


@pytest.mark.parametrize("shape", [(2, 1, 8, 8), (3, 8, 8)])
def test_scaling_refuses_images_of_another_shape(shape):
    scaling = PixelScaling(PIXEL_STATISTICS["half"], in_channels=3, out_channels=3)
    with pytest.raises(ModelError, match=r"\(B, 3, H, W\).*Got \(" + str(shape[0])):
        scaling(torch.zeros(shape))


def build_head(**knobs) -> EmbeddingHead:
    defaults = {
        "num_features": 6,
        "embedding_dim": 4,
        "pooling": "avg",
        "layer_norm": False,
        "projection": "linear",
        "normalize": False,
    }
    return EmbeddingHead(**{**defaults, **knobs})


# One channel of 1, 2, 3, 6: the mean is 3, the maximum 6, their sum 9.
@pytest.mark.parametrize(("pooling", "value"), [("avg", 3.0), ("max", 6.0), ("avg+max", 9.0)])
def test_pooling_has_a_worked_value(pooling, value):
    features = torch.tensor([1.0, 2.0, 3.0, 6.0]).reshape(1, 1, 2, 2)
    assert GlobalPooling(pooling)(features).tolist() == [[value]]


@pytest.mark.parametrize("pooling", ["avg", "max", "avg+max"])
def test_pooling_leaves_a_vector_as_it_is(pooling):
    features = torch.randn(3, 5)
    assert torch.equal(GlobalPooling(pooling)(features), features)


def test_layer_norm_comes_before_the_projection_and_has_no_weights():
    head = build_head(layer_norm=True)
    features = torch.randn(5, 6)
    mean = features.mean(dim=1, keepdim=True)
    variance = features.var(dim=1, keepdim=True, unbiased=False)
    expected = head.projection((features - mean) / (variance + 1e-5).sqrt())
    torch.testing.assert_close(head(features), expected)
    assert sorted(head.state_dict()) == ["projection.bias", "projection.weight"]


def test_layer_norm_hides_the_scale_of_the_feature():
    head = build_head(layer_norm=True)
    features = torch.randn(5, 6)
    torch.testing.assert_close(head(features), head(50 * features + 3), rtol=1e-3, atol=1e-3)


def test_projection_starts_as_he_normal_by_fan_out_with_zero_bias():
    torch.manual_seed(0)
    head = build_head(num_features=800, embedding_dim=200)
    # fan out is 200, so the standard deviation is sqrt(2 / 200) = 0.1
    assert head.projection.weight.std().item() == pytest.approx(math.sqrt(2 / 200), rel=0.02)
    assert head.projection.bias.abs().max().item() == 0


def test_projection_without_bias_sends_zero_to_zero():
    head = build_head(projection="linear_no_bias")
    assert list(head.state_dict()) == ["projection.weight"]
    assert head(torch.zeros(2, 6)).abs().max().item() == 0


def test_no_projection_hands_the_pooled_feature_on():
    head = build_head(projection="none", embedding_dim=6, pooling="max")
    features = torch.randn(2, 6, 3, 3)
    assert torch.equal(head(features), features.amax(dim=(2, 3)))
    assert list(head.parameters()) == []


def test_no_projection_refuses_another_embedding_dim():
    with pytest.raises(ModelError, match=r"trunk's 6 channels. Got model.embedding_dim=4"):
        build_head(projection="none")


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**31), st.integers(1, 9), st.integers(2, 40))
def test_normalized_embeddings_have_unit_length(seed, num_images, num_features):
    torch.manual_seed(seed)
    head = build_head(num_features=num_features, normalize=True, projection="linear_no_bias")
    lengths = head(torch.randn(num_images, num_features) + 0.1).norm(dim=1)
    torch.testing.assert_close(lengths, torch.ones(num_images), rtol=1e-4, atol=1e-4)


def test_normalizing_keeps_the_direction():
    # (3, 4) has length 5
    embeddings = l2_normalize(torch.tensor([[3.0, 4.0]]))
    torch.testing.assert_close(embeddings, torch.tensor([[0.6, 0.8]]))


def test_normalizing_a_zero_vector_gives_zero_and_a_finite_gradient():
    embeddings = torch.zeros(1, 3, requires_grad=True)
    normalized = l2_normalize(embeddings)
    normalized.sum().backward()
    assert normalized.abs().max().item() == 0
    assert torch.isfinite(embeddings.grad).all()


def test_head_without_normalization_gives_raw_embeddings():
    head = build_head()
    features = torch.randn(2, 6)
    assert torch.equal(head(features), head.projection(features))


@pytest.mark.parametrize("normalize", [True, False])
def test_head_gives_float32_under_autocast(normalize):
    head = build_head(normalize=normalize)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert head(torch.randn(3, 6)).dtype == torch.float32


def test_head_gives_float64_for_float64():
    assert build_head().double()(torch.randn(3, 6, dtype=torch.float64)).dtype == torch.float64


def test_gradient_of_the_normalized_head_is_right():
    torch.manual_seed(0)
    head = build_head(normalize=True, layer_norm=True, pooling="avg+max").double()
    features = torch.randn(2, 6, 2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(head, features)
