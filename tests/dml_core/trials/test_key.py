import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dml_core.config import resolve_trial_config
from dml_core.config.loading import flatten
from dml_core.devices import describe_device
from dml_core.trials import key as key_module
from dml_core.trials.key import (
    FREE_KEYS,
    compute_key,
    digest_config,
    hash_training_code,
    list_differences,
    make_parts,
    own_parts,
    read_libraries,
    say_other_libraries,
)
from tests.references.tiny_trials import tiny_config

ROOT = Path(__file__).parents[3]
FREELY_CHANGED = {
    "training__device": "cpu",
    "training__loader_workers": 3,
    "data__prepared_root": "elsewhere",
    "data__on_leak": "allow",
    "evaluation__clustering": True,
    "evaluation__kmeans_iterations": 7,
    "evaluation__kmeans_restarts": 3,
    "evaluation__match_rates": [0.01],
    "evaluation__corruptions": ["blur"],
    "evaluation__severities": [2],
    "evaluation__binary": True,
}


def make(root, *, code="c", data="d", libraries=None, device="cpu", **knobs):
    return make_parts(
        tiny_config(root, **knobs),
        code=code,
        data=data,
        libraries=libraries or {"torch": "2"},
        device=device,
    )


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"loss__alpha": 16}, "loss.alpha: 32.0 then, 16.0 now"),
        ({"seed": 1}, "seed: 0 then, 1 now"),
        (
            {"training__precision": "bfloat16"},
            "training.precision: 'float32' then, 'bfloat16' now",
        ),
        ({"code": "other"}, "training code: 'c' then, 'other' now"),
        ({"data": "other"}, "data and split: 'd' then, 'other' now"),
        ({"libraries": {"torch": "3"}}, "torch: '2' then, '3' now"),
        ({"libraries": {"torch": "2", "timm": "1"}}, "timm: None then, '1' now"),
        ({"device": "cuda"}, "device: 'cpu' then, 'cuda' now"),
    ],
)
def test_each_part_changes_the_key_and_is_named(tmp_path, change, line):
    parts, other = make(tmp_path), make(tmp_path, **change)
    assert compute_key(parts) == compute_key(make(tmp_path))
    assert list_differences(parts, make(tmp_path)) == []
    assert compute_key(parts) != compute_key(other)
    assert list_differences(parts, other) == [line]


def test_a_key_is_safe_as_a_folder_name(tmp_path):
    key = compute_key(make(tmp_path))
    assert len(key) == 16
    assert set(key) <= set("0123456789abcdef")


@pytest.mark.parametrize("knob", FREELY_CHANGED)
def test_free_keys_do_not_count(tmp_path, knob):
    name = knob.replace("__", ".")
    assert name in FREE_KEYS
    plain, other = tiny_config(tmp_path), tiny_config(tmp_path, **{knob: FREELY_CHANGED[knob]})
    values = [flatten(config.model_dump(mode="json"))[name] for config in (plain, other)]
    assert values[0] != values[1]
    assert digest_config(plain) == digest_config(other)


def test_the_free_keys_are_keys_of_a_configuration(tmp_path):
    sections = tiny_config(tmp_path).model_dump(mode="json")
    for name in FREE_KEYS:
        section, _, field = name.partition(".")
        assert field in sections[section], name


def test_a_stored_configuration_has_the_key_of_the_one_that_was_written(tmp_path):
    config = tiny_config(tmp_path, optimizer__learning_rate=1e-4, loss__alpha=16)
    stored = json.loads(json.dumps(config.model_dump(mode="json")))
    others = {"code": "", "data": "", "libraries": {}, "device": ""}
    key = compute_key(make_parts(config, **others))
    assert compute_key(make_parts(stored, **others)) == key
    # A later key without a value changes nothing.
    assert compute_key(make_parts({**stored, "later": None}, **others)) == key


def test_where_the_data_lie_does_not_change_the_key(tmp_path):
    one, other = tiny_config(tmp_path / "a"), tiny_config(tmp_path / "b")
    assert digest_config(one) == digest_config(other)
    assert digest_config(one) != digest_config(resolve_trial_config())


def hash_with(monkeypatch, folder, *, file="losses/triplet.py", old=None, new=None):
    """Returns the hash over a copy of the core with an edited file."""
    core = folder / "dml_core"
    shutil.rmtree(core, ignore_errors=True)
    shutil.copytree(ROOT / "dml_core", core, ignore=shutil.ignore_patterns("__pycache__"))
    path = core / file
    text = path.read_text()
    if old is not None:
        assert old in text
        path.write_text(text.replace(old, new, 1))
    monkeypatch.setattr(key_module, "__file__", str(core / "trials/key.py"))
    return key_module.hash_training_code.__wrapped__()


def test_words_do_not_change_the_hash_of_the_code(tmp_path, monkeypatch):
    assert hash_with(monkeypatch, tmp_path) == hash_training_code()
    for old, new in [
        ('"""', '"""Other words. '),
        ("\nimport ", "\n# A comment.\n\n\nimport "),
        ("\ndef ", '\n"""A text that stands alone."""\n\n\ndef '),
    ]:
        assert hash_with(monkeypatch, tmp_path, old=old, new=new) == hash_training_code(), new
    # Studies and statistics only read a trial's numbers.
    changed = {"file": "analysis/estimates.py", "old": "\nimport ", "new": "\nimport os\nimport "}
    assert hash_with(monkeypatch, tmp_path, **changed) == hash_training_code()


@pytest.mark.parametrize("file", ["losses/triplet.py", "seeding.py", "samplers/dense.py"])
def test_a_changed_loss_or_seed_changes_the_hash(tmp_path, monkeypatch, file):
    change = {"file": file, "old": "return ", "new": "return 2 * "}
    assert hash_with(monkeypatch, tmp_path, **change) != hash_training_code()


def test_the_hash_is_that_of_every_process():
    code = "from dml_core.trials.key import hash_training_code; print(hash_training_code())"
    command = [sys.executable, "-c", code]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert printed.stdout.strip() == hash_training_code()


def test_the_libraries_are_those_that_are_installed():
    found = read_libraries()
    assert list(found) == ["torch", "torchvision", "timm", "peft", "faiss"]
    assert found["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert "none" not in found.values()


def test_only_differing_libraries_are_named():
    stored, now = {"torch": "1", "timm": "5"}, {"torch": "2", "timm": "5", "faiss": "7"}
    assert say_other_libraries(stored, now) == ("torch 1, faiss unknown", "torch 2, faiss 7")


def test_the_parts_of_this_process_are_its_code_libraries_and_device(tmp_path):
    config, device = tiny_config(tmp_path), torch.device("cpu")
    assert own_parts(config, data="d", device=device) == make_parts(
        config,
        code=hash_training_code(),
        data="d",
        libraries=read_libraries(),
        device=describe_device(device),
    )
