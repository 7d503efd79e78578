import numpy as np
import pytest
import torch

from dml_core.data.prepared import open_development
from dml_core.models.building import build_model
from dml_core.training.activations import ActivationInputs, make_inputs
from dml_core.training.determinism import seeded_torch
from dml_core.training.state import build_state
from dml_core.training.trial import run_trial
from tests.references.tiny_trials import prepare_tiny, tiny_config


@pytest.fixture
def root(tmp_path):
    prepare_tiny(tmp_path)
    return tmp_path


def build(config):
    with seeded_torch(config.seed, "model"):
        model = build_model(config, in_channels=1)
    model.set_training(False, freeze_batch_norm=True)
    return model


def make(config):
    data = open_development(config.data)
    return build(config), make_inputs(build(config), data, config, device=torch.device("cpu")), data


def test_a_trunk_that_learns_reads_pixels(root):
    _, inputs, _ = make(tiny_config(root))
    assert not inputs.are_activations


def test_cached_activations_equal_the_output_of_the_frozen_blocks(root):
    model, inputs, data = make(tiny_config(root, trunk__train="from:stage3"))
    assert inputs.are_activations
    pixels = torch.from_numpy(data.train.gather(np.arange(6)).transpose(0, 3, 1, 2).copy())
    expected = model.frozen_activations(pixels)
    assert torch.allclose(inputs.train.plain(np.arange(6)), expected, rtol=1e-3, atol=1e-3)
    assert len(inputs.validation) == len(data.validation)


def test_tokens_of_a_transformer_are_cached(root):
    config = tiny_config(
        root, model__backbone="timm:test_vit", model__pooling="cls+mean", data__image_size_px=28,
        augmentation__input_size_px=32, augmentation__shift_px=0,
        trunk__train="from:blocks.4", training__epochs=1,
    )  # fmt: skip
    data, found = open_development(config.data), []
    for cache in (True, False):
        trunk = config.trunk.model_copy(update={"cache": cache})
        trial = config.model_copy(update={"trunk": trunk})
        result = run_trial(trial, data, on_epoch_end=lambda *_: None)
        found.append(result.reports[0].train_loss)
    # The cache holds the tokens in half precision.
    assert found[0] == pytest.approx(found[1], rel=1e-2)
    (view, *_) = (root / ".activations").rglob("view_0.npy")
    assert np.load(view, mmap_mode="r").shape[1:] == (5, 64)


def test_the_cache_is_computed_once(root, monkeypatch):
    config = tiny_config(root, trunk__train="none")
    _, first, _ = make(config)
    from dml_core.models.embedding_model import EmbeddingModel

    def refuse(*_):
        raise AssertionError("computed again")

    monkeypatch.setattr(EmbeddingModel, "frozen_activations", refuse)
    _, second, _ = make(config)
    indices = np.arange(4)
    assert torch.equal(first.train.plain(indices), second.train.plain(indices))


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},  # other initial weights, since none are pretrained
        {"model__width": 8},
        {"augmentation__input_size_px": 24},
        {"trunk__train": "from:stage2"},
    ],
)
def test_whatever_changes_activations_has_another_cache(root, change):
    base = {"trunk__train": "from:stage3"}
    make(tiny_config(root, **base))
    before = set((root / ".activations").rglob("*.npy"))
    make(tiny_config(root, **{**base, **change}))
    after = set((root / ".activations").rglob("*.npy"))
    assert len(after) == 2 * len(before) == 4


def test_views_are_drawn_for_each_image():
    views = [np.full((5, 2), number, dtype=np.float16) for number in range(3)]
    inputs = ActivationInputs(views)
    drawn = inputs.augmented(np.arange(5).repeat(40), np.random.default_rng(0))
    assert set(drawn[:, 0].tolist()) == {0.0, 1.0, 2.0}
    assert set(inputs.plain(np.arange(5))[:, 0].tolist()) == {0.0}


def test_every_float16_is_upcast_exactly():
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
    rows = halves[~np.isnan(halves)].reshape(-1, 2)
    found = ActivationInputs([rows]).plain(np.arange(len(rows)))
    assert found.dtype == torch.float32
    assert np.array_equal(found.numpy(), rows.astype(np.float32))


@pytest.mark.parametrize(("train", "threads"), [("all", 3), ("from:stage3", 0), ("none", 0)])
def test_cached_activations_are_read_without_threads(root, train, threads):
    config = tiny_config(root, trunk__train=train, training__loader_workers=3)
    assert build_state(config, open_development(config.data)).loader_workers == threads


def test_augmented_views_differ_from_the_plain_one(root):
    _, inputs, _ = make(tiny_config(root, trunk__train="from:stage3", trunk__cache_views=2))
    plain, augmented = inputs.train.views
    assert plain.shape == augmented.shape
    assert not np.array_equal(plain, augmented)


@pytest.mark.parametrize("train", ["none", "from:stage3"])
def test_only_trained_weights_change(root, train):
    config = tiny_config(root, trunk__train=train)
    states = []
    result = run_trial(
        config,
        open_development(config.data),
        on_epoch_end=lambda _, state: states.append({k: v.clone() for k, v in state.model.items()}),
    )
    assert result.outcome == "finished"
    moved = {name for name in states[0] if not torch.equal(states[0][name], states[-1][name])}
    assert moved
    assert not any(name.startswith("frozen.") for name in moved)
    assert any(name.startswith("head.") for name in moved)


def test_a_damaged_file_is_recomputed_with_the_same_bits(root, caplog):
    config = tiny_config(root, trunk__train="none")
    make(config)
    for file in (root / ".activations").rglob("*.npy"):
        before = file.read_bytes()
        file.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
        make(config)
        assert file.read_bytes() == before
        assert f"{file} is damaged" in caplog.text
