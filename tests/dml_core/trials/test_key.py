import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from dml_core.config.loading import flatten
from dml_core.trials import key as key_module
from dml_core.trials.key import (
    FREE_KEYS,
    TrialKey,
    describe_device,
    digest_numbers,
    expect_device,
    hash_training_code,
    is_expected_device,
    make_key,
    read_libraries,
    say_maker,
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
    "evaluation__binary": True,
}


def make(root, *, code="c", data="d", libraries=None, **knobs):
    return make_key(
        tiny_config(root, **knobs), code=code, data=data, libraries=libraries or {"torch": "2"}
    )


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("config", {"loss__alpha": 16}),
        ("config", {"seed": 1}),
        ("config", {"training__precision": "bfloat16"}),
        ("code", {"code": "other"}),
        ("data", {"data": "other"}),
        ("libraries", {"libraries": {"torch": "3"}}),
    ],
)
def test_each_part_counts_for_itself(tmp_path, part, change):
    key, other = make(tmp_path), make(tmp_path, **change)
    assert key == make(tmp_path)
    changed = [f.name for f in fields(TrialKey) if getattr(key, f.name) != getattr(other, f.name)]
    assert changed == [part]


@pytest.mark.parametrize("knob", FREELY_CHANGED)
def test_free_keys_do_not_count(tmp_path, knob):
    name = knob.replace("__", ".")
    assert name in FREE_KEYS
    plain, other = tiny_config(tmp_path), tiny_config(tmp_path, **{knob: FREELY_CHANGED[knob]})
    values = [flatten(config.model_dump(mode="json"))[name] for config in (plain, other)]
    assert values[0] != values[1]
    assert digest_numbers(plain) == digest_numbers(other)


def test_the_free_keys_are_keys_of_a_configuration(tmp_path):
    sections = tiny_config(tmp_path).model_dump(mode="json")
    for name in FREE_KEYS:
        section, _, field = name.partition(".")
        assert field in sections[section], name


def test_a_stored_configuration_has_the_key_of_the_one_that_was_written(tmp_path):
    config = tiny_config(tmp_path)
    stored = config.model_dump(mode="json")
    assert digest_numbers(stored) == digest_numbers(config)
    # A key that came later, without a value, is as good as none.
    assert digest_numbers({**stored, "later": None}) == digest_numbers(config)


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
    changed = {"file": "analysis/intervals.py", "old": "\nimport ", "new": "\nimport os\nimport "}
    assert hash_with(monkeypatch, tmp_path, **changed) == hash_training_code()


@pytest.mark.parametrize("file", ["losses/triplet.py", "seeding.py", "samplers/dense.py"])
def test_a_changed_loss_or_seed_changes_the_hash(tmp_path, monkeypatch, file):
    change = {"file": file, "old": "return ", "new": "return 2 * "}
    assert hash_with(monkeypatch, tmp_path, **change) != hash_training_code()


def test_the_hash_is_that_of_every_process():
    code = "from dml_core.trials.key import hash_training_code; print(hash_training_code())"
    command = [sys.executable, "-c", code]
    told = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert told.stdout.strip() == hash_training_code()


def test_the_libraries_are_those_that_are_installed():
    found = read_libraries()
    assert list(found) == ["torch", "torchvision", "timm", "faiss"]
    assert found["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert "none" not in found.values()


def test_only_other_libraries_are_told():
    stored, now = {"torch": "1", "timm": "5"}, {"torch": "2", "timm": "5", "faiss": "7"}
    assert say_other_libraries(stored, now) == ("torch 1, faiss unknown", "torch 2, faiss 7")


def test_a_device_is_told_by_its_kind():
    kind = describe_device(torch.device("cpu"))
    assert kind == f"cpu {torch.backends.cpu.get_cpu_capability()}"
    assert describe_device(torch.device("meta")) == "meta"
    assert say_maker(torch.device("cpu")) == {
        "training code": hash_training_code(),
        **read_libraries(),
        "device": kind,
    }


def test_a_gpus_name_and_a_clusters_devices_stay_open():
    kind = describe_device(torch.device("cpu"))
    assert expect_device("cpu", is_here=True) == kind
    assert expect_device("cpu", is_here=False) == "cpu"
    assert expect_device("cuda:1", is_here=True) == "cuda"
    assert expect_device("auto", is_here=False) == ""
    here = "cuda" if torch.cuda.is_available() else kind
    assert expect_device("auto", is_here=True) == here


@pytest.mark.parametrize(
    ("found", "expected", "is_expected"),
    [
        ("cpu AVX2", "cpu AVX2", True),
        ("cpu AVX2", "cpu AVX512", False),
        ("cpu AVX2", "cpu AVX", False),
        ("cuda A100", "cuda", True),
        ("cuda A100", "cpu", False),
        ("cuda A100", "", True),
    ],
)
def test_a_device_is_expected_as_far_as_it_is_known(found, expected, is_expected):
    assert is_expected_device(found, expected) is is_expected
