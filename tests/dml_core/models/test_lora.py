"""Low-rank factors beside the layers of a trunk."""

import pytest
import torch
from torch import nn

from dml_core.config import ConfigError, resolve_trial_config
from dml_core.config.trial import LoraConfig, ModelConfig
from dml_core.models.blocks import ModelError
from dml_core.models.building import build_embedding_model
from dml_core.models.embedding_model import EmbeddingModel
from dml_core.models.lora import MARK, add_lora

IMAGES = torch.randint(
    0, 256, (4, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(3)
)
NETWORKS = {"convnet": "avg", "timm:test_vit": "cls+mean", "timm:test_efficientnet": "avg"}


def build(backbone: str, train: str = "lora", **knobs: object) -> EmbeddingModel:
    torch.manual_seed(0)
    config = ModelConfig(backbone=backbone, width=4, embedding_dim=8, pooling=NETWORKS[backbone])
    return build_embedding_model(
        config, train=train, in_channels=3, input_size_px=32, normalize=True,
        lora=LoraConfig(**knobs),
    )  # fmt: skip


def train_steps(model: EmbeddingModel, count: int = 2) -> None:
    """Takes steps of a loss that no factor can ignore."""
    model.set_training(True, freeze_batch_norm=False)
    optimizer = torch.optim.SGD([p for part in model.parameter_groups().values() for p in part], 1)
    for _ in range(count):
        optimizer.zero_grad()
        (model(IMAGES) * torch.linspace(-1, 1, 8)).sum().backward()
        optimizer.step()
    model.set_training(False, freeze_batch_norm=False)


@pytest.mark.parametrize("backbone", NETWORKS)
def test_only_factors_and_head_learn_and_each_factor_does(backbone):
    plain, model = build(backbone, "all").eval(), build(backbone, rank=2)
    expected = plain(IMAGES)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    # The factors start without effect.
    assert torch.equal(model.eval()(IMAGES), expected)
    train_steps(model)
    changed = {n for n, value in model.state_dict().items() if not torch.equal(value, before[n])}
    head = {"head.projection.weight", "head.projection.bias"}
    assert changed <= {name for name in before if MARK in name} | head
    # The other factor of a layer moves only after this one, by gradients that may vanish.
    assert changed >= {name for name in before if "lora_B" in name} | head
    assert not torch.allclose(model(IMAGES), expected)


def test_a_factor_has_the_rank_and_scale_that_is_configured():
    trunk = nn.Sequential(nn.Linear(3, 5, bias=False))
    image = torch.eye(3)
    add_lora(trunk, LoraConfig(rank=2, alpha=6), image, backbone="x")
    layer = trunk[0]
    down, up = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    assert (down.shape, up.shape) == ((2, 3), (5, 2))
    with torch.no_grad():
        up.normal_()
        expected = layer.get_base_layer().weight + 6 / 2 * up @ down
        torch.testing.assert_close(trunk(image), expected.T)


@pytest.mark.parametrize("backbone", NETWORKS)
def test_merged_factors_leave_a_plain_network_with_the_same_embeddings(backbone):
    model = build(backbone, rank=2)
    train_steps(model)
    expected = model(IMAGES)
    model.merge_adapters()
    torch.testing.assert_close(model(IMAGES), expected, rtol=1e-4, atol=1e-5)
    assert list(model.state_dict()) == list(build(backbone, "all").state_dict())


def test_learned_and_constant_state_are_the_whole_state():
    model = build("timm:test_efficientnet", rank=2)
    learned, constant = model.learned_state(), model.constant_state()
    assert not learned.keys() & constant.keys()
    assert {*learned, *constant} == set(model.state_dict())
    assert all(MARK in name or name.startswith("head.") for name in learned)


def test_targets_choose_the_layers():
    model = build("timm:test_vit", targets=("qkv",))
    adapted = {
        name.split(f".{MARK}")[0] for name, _ in model.trunk.named_parameters() if MARK in name
    }
    assert adapted == {f"blocks_{number}.attn.qkv" for number in range(6)}


def test_a_target_that_is_no_layer_is_refused_with_the_nearest():
    message = r"trunk.lora.targets must name layers .*Got 'qvk'. Did you mean 'qkv'\?.*fc1, fc2"
    with pytest.raises(ModelError, match=message):
        build("timm:test_vit", targets=("qvk",))


class ReadsWeights(nn.Module):
    """An attention that reads the weights of a layer without calling it, as that of EVA."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.proj(nn.functional.linear(tokens, self.qkv.weight))


def test_a_layer_that_is_not_called_gets_no_factors():
    trunk, image = nn.Sequential(ReadsWeights()), torch.ones(1, 4)
    with pytest.raises(ModelError, match=r"that it calls. Got 'qkv'.*There are proj\."):
        add_lora(trunk, LoraConfig(targets=("qkv",)), image, backbone="x")
    add_lora(trunk, LoraConfig(), image, backbone="x")
    assert {n.split(".")[1] for n, _ in trunk.named_parameters() if MARK in n} == {"proj"}


def test_factors_without_lora_are_refused():
    with pytest.raises(ConfigError, match=r"trunk.lora has no effect unless .*Got trunk.train=all"):
        resolve_trial_config({"trunk.lora.rank": 4})
    assert resolve_trial_config({"trunk.train": "lora", "trunk.lora.rank": 4}).trunk.lora.rank == 4
