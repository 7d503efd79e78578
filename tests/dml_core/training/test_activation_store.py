import json

import numpy as np
import pytest

from dml_core.training.activation_store import StoredSet

ROWS = np.arange(12, dtype=np.float16).reshape(6, 2)


@pytest.fixture
def stored(tmp_path):
    found = StoredSet(tmp_path / "glyphs-key")
    found.write_view(0, [(4, ROWS[4:]), (0, ROWS[:4])], num_images=6, facts={"size": 8})
    return found


def test_parts_may_come_in_any_order(stored):
    assert np.array_equal(stored.open_view(0), ROWS)
    assert not list(stored.folder.glob("*.partial"))


def test_the_record_of_a_view_holds_its_origin(stored):
    record = json.loads((stored.folder / "view_0.json").read_text())
    assert record["size"] == 8
    assert len(record["sha256"]) == 64


def test_a_missing_view_is_none(stored):
    assert stored.open_view(1) is None


@pytest.mark.parametrize("place", [3, -1])
def test_a_view_with_a_flipped_bit_is_refused(stored, caplog, place):
    file = stored.folder / "view_0.npy"
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)
    assert not stored.has_view(0)
    assert "view_0.npy is damaged: its sha256 must be" in caplog.text


def test_a_view_without_its_record_is_damaged(stored):
    (stored.folder / "view_0.json").unlink()
    assert not stored.has_view(0)


def test_an_intact_view_is_hashed_once(stored, monkeypatch):
    assert stored.has_view(0)
    monkeypatch.setattr("dml_core.training.activation_store.hash_file", None)
    assert stored.has_view(0)
