"""Whatever stands in a checkpoint, it is read as it was written or refused, and runs nothing."""

import io
import pickle
import tempfile
import zipfile
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save as save_safetensors

from dml_core.config import resolve_trial_config
from dml_core.measures.model_scores import load_trained_model
from dml_core.models.blocks import ModelError
from dml_core.models.building import build_model
from dml_core.models.weights import read_state_dict
from dml_core.training.checkpoint import (
    FORMAT,
    Checkpoint,
    DamagedCheckpoint,
    _digest,
    _to_plain,
    load_checkpoint,
    load_newest_checkpoint,
)
from tests.references.fuzzed_files import check_message, damaged_bytes, fuzzed, no_hang
from tests.references.tiny_trials import TINY

CONFIG = resolve_trial_config({**TINY, "model.width": 4, "model.embedding_dim": 2})
TENSORS = dict(build_model(CONFIG, in_channels=1).state_dict())
SOUND = _to_plain(
    Checkpoint(CONFIG, 3, TENSORS, {}, {}, best_epoch=2, best_score=0.5, in_channels=1)
)
SOUND["digest"] = _digest(SOUND)


def saved(content: object) -> bytes:
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


WHOLE = saved(SOUND)
WEIGHTS = {".pth": saved(TENSORS), ".safetensors": save_safetensors(TENSORS)}
SNIPPETS = [b"", b"\0" * 8, b"\xff" * 8, b"PK\x03\x04", b"PK\x01\x02", b"cos\nsystem\n(S'x'\ntR."]


def read(content: bytes) -> None:
    """Reads a checkpoint and its model; whatever is wrong must be a DamagedCheckpoint."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "epoch_000003.pt"
        path.write_bytes(content)
        with no_hang():
            try:
                checkpoint = load_checkpoint(path)
                load_trained_model(checkpoint)
                assert load_newest_checkpoint(Path(folder))[0].epoch == checkpoint.epoch
            except (DamagedCheckpoint, ModelError) as error:
                check_message(error)


def sign(content: dict) -> bytes:
    """Returns the file with the digest that belongs to it, as somebody who knows the format can."""
    content = {key: value for key, value in content.items() if key != "digest"}
    return saved({**content, "digest": _digest(content)})


def test_the_checkpoint_itself_is_sound(tmp_path):
    path = tmp_path / "a.pt"
    path.write_bytes(WHOLE)
    assert torch.equal(
        load_trained_model(load_checkpoint(path)).state_dict()["head.projection.weight"],
        TENSORS["head.projection.weight"],
    )


@fuzzed(80)
@given(damaged_bytes(WHOLE) | damaged_bytes(WHOLE, snippets=SNIPPETS))
def test_damaged_bytes(content):
    read(content)


_plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
_tensors = st.builds(
    lambda shape, kind: torch.zeros(shape, dtype=kind),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from([torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.complex64]),
)


@fuzzed(80)
@given(st.data())
def test_signed_content_of_another_form(data):
    content = dict(SOUND)
    for _ in range(data.draw(st.integers(1, 3))):
        key = data.draw(st.sampled_from([*SOUND, "more"]))
        value = data.draw(
            _plain | _tensors | st.dictionaries(st.sampled_from([*TENSORS]), _tensors)
        )
        content[key] = value
        if data.draw(st.integers(0, 4)) == 0:
            del content[key]
    read(sign(content))


@fuzzed(100)
@given(st.sampled_from([*WEIGHTS]), st.data())
def test_damaged_weights(suffix, data):
    content = data.draw(damaged_bytes(WEIGHTS[suffix]))
    with tempfile.TemporaryDirectory() as folder, no_hang():
        path = Path(folder) / f"weights{suffix}"
        path.write_bytes(content)
        try:
            read_state_dict(path)
        except ModelError as error:
            check_message(error)


def nest(levels: int) -> list:
    value: list = [0]
    for _ in range(levels):
        value = [value] * 9
    return value


def deep(levels: int) -> list:
    value: list = []
    for _ in range(levels):
        value = [value]
    return value


def compress(content: bytes) -> bytes:
    """Returns the same zip with its members compressed, as a bomb has them."""
    target = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(content)) as source,
        zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as squeezed,
    ):
        for member in source.infolist():
            squeezed.writestr(member.filename, source.read(member))
    return target.getvalue()


HUGE = torch.zeros(1).expand(1_000_000, 1_000_000)
CRAFTED = {
    "a tensor of a trillion numbers in four bytes": saved({**SOUND, "model": {"a": HUGE}}),
    "lists that repeat each other": saved({**SOUND, "optimizer": {"a": nest(12)}}),
    "lists in lists": saved({**SOUND, "optimizer": {"a": deep(300)}}),
    "compressed zeros": compress(saved({**SOUND, "model": {"a": torch.zeros(1_000_000)}})),
    "a sparse tensor": saved({**SOUND, "model": {"a": torch.eye(2).to_sparse()}}),
    "a set of names": saved({"format": FORMAT, "digest": {"a", "b"}}),
    "an ordered mapping": saved(OrderedDict(SOUND, digest="0")),
    "an old pickle": pickle.dumps(SOUND),
    "nothing": b"",
}


@pytest.mark.parametrize("name", CRAFTED)
def test_crafted_files_are_refused_before_they_fill_the_memory(name, tmp_path):
    path = tmp_path / "a.pt"
    path.write_bytes(CRAFTED[name])
    with no_hang(), pytest.raises(DamagedCheckpoint, match=r"a\.pt"):
        load_checkpoint(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epoch": "3"}, "epoch is a str"),
        ({"model": [1]}, "model is a list"),
        ({"model": {"a": 1}}, "model must map names to tensors"),
        ({"config": "{}{"}, "invalid content"),
        ({"config": '{"loss": {"name": "evil"}}'}, "invalid content"),
        ({"label_scale": ["a"]}, "label_scale must hold"),
        ({"in_channels": 10**9}, "in_channels is 1000000000"),
        ({"best_epoch": -1}, "below zero"),
        ({"more": 1}, "invalid content"),
    ],
)
def test_a_signed_checkpoint_of_another_form_is_refused(change, message, tmp_path):
    path = tmp_path / "a.pt"
    path.write_bytes(sign({**SOUND, **change}))
    with pytest.raises(DamagedCheckpoint, match=message):
        load_checkpoint(path)


def test_a_signed_checkpoint_with_the_weights_of_another_model_is_refused(tmp_path):
    path = tmp_path / "a.pt"
    path.write_bytes(sign({**SOUND, "model": {"a": torch.zeros(2)}}))
    with pytest.raises(DamagedCheckpoint, match="do not fit its configuration"):
        load_trained_model(load_checkpoint(path))
