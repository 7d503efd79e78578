"""The network that is trained."""

import copy

import pytest
import torch
from torch import nn

from dml_core.config.trial import ModelConfig
from dml_core.models import EmbeddingModel, build_embedding_model


def build(backbone="convnet", *, train="all", seed=0, **knobs) -> EmbeddingModel:
    torch.manual_seed(seed)
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
        *(("timm:test_vit", train) for train in ("all", "none")),
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


def test_fingerprint_tells_weights_cuts_pooling_and_scaling_apart():
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
