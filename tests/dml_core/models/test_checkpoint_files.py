"""Reading tensors, and nothing but tensors, from files."""

import os
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from dml_core.models import weights as checkpoint_files
from dml_core.models.blocks import ModelError
from dml_core.models.weights import read_state_dict

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
    with pytest.raises(ModelError, match=r"nowhere.pth', which is not there"):
        read_state_dict(tmp_path / "nowhere.pth")


def test_folder_is_refused(tmp_path):
    with pytest.raises(ModelError, match="which is a folder"):
        read_state_dict(tmp_path)


@pytest.mark.parametrize("name", ["notes.pth", "notes.safetensors"])
@pytest.mark.parametrize("content", [b"", b"these are notes, not weights", b"PK\x03\x04 cut off"])
def test_file_that_is_no_checkpoint_is_refused(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError, match=rf"file of tensors by name.*{name}.*torch.save"):
        read_state_dict(tmp_path / name)


@settings(deadline=None, max_examples=40)
@given(st.binary(max_size=60), st.sampled_from([".pth", ".safetensors"]))
def test_arbitrary_bytes_are_refused_with_the_same_error(content, suffix):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"bytes{suffix}"
        path.write_bytes(content)
        with pytest.raises(ModelError, match="file of tensors by name"):
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
    with pytest.raises(ModelError, match="no tensors, but 'epoch', 'note'"):
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
