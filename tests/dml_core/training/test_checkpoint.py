import os
import pickle
import random

import pytest
import torch

from dml_core.config import TrialConfig
from dml_core.training.checkpoint import (
    Checkpoint,
    DamagedCheckpoint,
    checkpoint_path,
    load_checkpoint,
    load_newest_checkpoint,
    remove_old_checkpoints,
    save_checkpoint,
)


def make_checkpoint(epoch=3):
    generator = torch.Generator().manual_seed(epoch)
    weights = {"trunk.weight": torch.randn(40, 30, generator=generator), "steps": torch.tensor(7)}
    return Checkpoint(
        config=TrialConfig(seed=5),
        epoch=epoch,
        model=weights,
        loss={"proxies": torch.randn(4, 3, generator=generator)},
        optimizer={"state": {0: {"step": torch.tensor(2.0)}}, "param_groups": [{"lr": 0.1}]},
        best_epoch=2,
        best_score=0.75,
        best_model={"trunk.weight": torch.zeros(40, 30)},
        label_scale=(0.5, 2.0),
        data_hash="abc",
    )


def test_a_checkpoint_survives_a_round_trip(tmp_path):
    saved = make_checkpoint()
    save_checkpoint(saved, tmp_path / "a.pt")
    loaded = load_checkpoint(tmp_path / "a.pt")
    assert loaded.config == saved.config
    assert torch.equal(loaded.model["trunk.weight"], saved.model["trunk.weight"])
    assert loaded.optimizer["param_groups"] == [{"lr": 0.1}]
    assert (loaded.epoch, loaded.best_epoch, loaded.best_score) == (3, 2, 0.75)
    assert loaded.label_scale == (0.5, 2.0)


def test_selected_weights_are_those_of_the_best_epoch():
    checkpoint = make_checkpoint()
    assert checkpoint.selected_model()["trunk.weight"].abs().sum() == 0
    assert checkpoint.selected_model()["steps"] == 7
    assert checkpoint.selected_epoch == 2


def test_any_flipped_bit_in_the_tensors_is_detected(tmp_path):
    path = tmp_path / "a.pt"
    save_checkpoint(make_checkpoint(), path)
    whole = path.read_bytes()
    weights = make_checkpoint().model["trunk.weight"].numpy().tobytes()
    start = whole.index(weights[:64])
    chance = random.Random(0)
    for _ in range(20):
        damaged = bytearray(whole)
        damaged[start + chance.randrange(len(weights))] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(DamagedCheckpoint, match=r"a\.pt"):
            load_checkpoint(path)


def test_any_flipped_bit_gives_the_same_content_or_a_refusal(tmp_path):
    path = tmp_path / "a.pt"
    saved = make_checkpoint()
    save_checkpoint(saved, path)
    whole = path.read_bytes()
    chance = random.Random(1)
    refused = 0
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        try:
            loaded = load_checkpoint(path)
        except DamagedCheckpoint:
            refused += 1
        else:
            # The flip hit padding between the records.
            assert torch.equal(loaded.model["trunk.weight"], saved.model["trunk.weight"])
            assert loaded.config == saved.config
    assert refused > 100


@pytest.mark.parametrize("length", [0, 1, 100, 1000, -1])
def test_a_truncated_checkpoint_is_refused_with_its_name(tmp_path, length):
    path = tmp_path / "a.pt"
    save_checkpoint(make_checkpoint(), path)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(DamagedCheckpoint, match=r"a\.pt cannot be read"):
        load_checkpoint(path)


class Evil:
    def __reduce__(self):
        return os.mkdir, ("evil-was-here",)


def test_a_pickle_with_code_is_refused_and_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.pt").write_bytes(pickle.dumps({"format": Evil()}))
    torch.save({"format": Evil()}, tmp_path / "b.pt")
    for name in ("a.pt", "b.pt"):
        with pytest.raises(DamagedCheckpoint, match=name):
            load_checkpoint(tmp_path / name)
    assert not (tmp_path / "evil-was-here").exists()


def test_the_one_before_a_damaged_checkpoint_is_used(tmp_path):
    for epoch in (1, 2, 3):
        save_checkpoint(make_checkpoint(epoch), checkpoint_path(tmp_path, epoch))
    checkpoint_path(tmp_path, 3).write_bytes(b"torn")
    checkpoint, refusals = load_newest_checkpoint(tmp_path)
    assert checkpoint.epoch == 2
    assert len(refusals) == 1
    assert "epoch_000003.pt" in refusals[0]


def test_a_folder_without_checkpoints_has_none(tmp_path):
    assert load_newest_checkpoint(tmp_path) == (None, [])
    with pytest.raises(FileNotFoundError, match=r"absent\.pt does not exist"):
        load_checkpoint(tmp_path / "absent.pt")


def test_old_checkpoints_and_partial_files_are_removed(tmp_path):
    for epoch in (1, 2, 3):
        save_checkpoint(make_checkpoint(epoch), checkpoint_path(tmp_path, epoch))
    (tmp_path / ".x.partial").write_bytes(b"")
    remove_old_checkpoints(tmp_path, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "epoch_000002.pt",
        "epoch_000003.pt",
    ]


def test_a_failed_write_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "a.pt"
    save_checkpoint(make_checkpoint(1), path)

    def fail(*_):
        raise OSError("no space left on device")

    # A full disk cannot be had here without a mount, so the write itself is made to fail.
    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(OSError, match="no space"):
        save_checkpoint(make_checkpoint(2), path)
    assert load_checkpoint(path).epoch == 1
    assert list(tmp_path.iterdir()) == [path]
