"""Code of the project folder that a configuration names by `python:`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from dml_core import own_code
from dml_core.config import ConfigError, resolve_trial_config
from dml_core.config.loading import load_project_config, to_flat_dict
from dml_core.losses import build_loss
from dml_core.own_code import OwnCodeError, find_names, hash_sources, list_sources, load_object
from dml_core.studies.loading import load_study
from dml_core.studies.own_code_checks import check_own_code, find_own_problems
from dml_core.trials.key import add_own_code

ROOT = Path(__file__).parents[2]
LOSSES = """
import torch
from torch import nn


class Scaled(nn.Module):
    def __init__(self, scale: float, num_classes: int, bias: bool = False):
        super().__init__()
        self.weight = nn.Parameter(torch.full((num_classes,), scale))

    def forward(self, embeddings, labels):
        return (self.weight[labels] * embeddings.square().mean(dim=1)).mean() + embeddings.mean()


class Nan(nn.Module):
    def forward(self, embeddings, labels):
        return embeddings.sum() * float("nan")


class Rows(nn.Module):
    def forward(self, embeddings, labels):
        return embeddings.sum(dim=1)


class Detached(nn.Module):
    def forward(self, embeddings, labels):
        return embeddings.detach().square().mean()


class Constant(nn.Module):
    def forward(self, embeddings, labels):
        return (embeddings * 0).sum()


class Fails(nn.Module):
    def forward(self, embeddings, labels):
        return embeddings @ labels


class Plain:
    pass
"""
NAME = "python:{}:Scaled"


@pytest.fixture
def module(tmp_path, monkeypatch, request):
    """The name of a module in the current folder, new for each test: modules are imported once."""
    name = f"own_{abs(hash(request.node.name))}"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / f"{name}.py").write_text(LOSSES)
    own_code._hash_at.cache_clear()
    return name


def own_config(module, kind="Scaled", **options):
    layer = {f"loss.options.{name}": value for name, value in options.items()}
    return resolve_trial_config({"loss.name": f"python:{module}:{kind}", **layer})


def test_a_loss_is_built_with_its_options_and_trained_as_proxies_are(module):
    config = own_config(module, scale=2.0)
    loss = build_loss(config.loss.name, num_classes=3, embedding_dim=4, options=config.loss.options)
    assert [parameter.tolist() for parameter in loss.parameters()] == [[2.0] * 3]
    embeddings = torch.ones(2, 4, dtype=torch.bfloat16, requires_grad=True)
    value = loss(embeddings, torch.tensor([0, 1]))
    assert value.item() == pytest.approx(3.0)
    assert value.dtype == torch.float32
    assert find_own_problems(config) == []


def test_options_are_dotted_keys(module):
    flat = to_flat_dict(own_config(module, scale=2.0, bias=True))
    assert flat["loss.options.scale"] == 2.0
    assert flat["loss.options.bias"] is True


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"scale": 1.0, "bais": True}, "loss.options.bais is not .* Did you mean 'bias'"),
        ({}, "loss.options.scale is missing"),
        ({"scale": 1.0, "num_classes": 3}, "loss.options.num_classes is passed by the project"),
        ({"scale": "wide"}, r"Scaled cannot be built \(.*scale='wide'"),
    ],
)
def test_options_are_checked_against_the_signature(module, options, said):
    with pytest.raises(ConfigError, match=said):
        build_loss(f"python:{module}:Scaled", num_classes=3, embedding_dim=4, options=options)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("Nan", "must be finite. It is nan"),
        ("Rows", r"must return a tensor with one number. Got shape \(16,\)"),
        ("Detached", "must have a gradient.* do not detach"),
        ("Constant", "must have a gradient.* zero on a random batch"),
        ("Fails", "fails on a random batch of 16 unit vectors of 4 classes: RuntimeError"),
        ("Plain", "must be a torch.nn.Module. Got Plain"),
        ("Missing", "must name a class or function of .* It has: .*Constant, Detached"),
    ],
)
def test_a_loss_that_cannot_train_is_reported_before_the_sweep(module, tmp_path, kind, said):
    arms = {"a": {"loss.name": f"python:{module}:{kind}"}, "b": {"loss.name": "triplet"}}
    study = {"question": "Which?", "arms": arms, "seeds": [0]}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(study))
    loaded = load_study(tmp_path / "s.yaml", load_project_config(ROOT / "params.yaml"))
    with pytest.raises(ConfigError, match=said):
        check_own_code(loaded)


def test_a_module_that_fails_or_is_missing_is_named(module, tmp_path):
    (tmp_path / "own_broken.py").write_text("import nothing_of_this_name")
    with pytest.raises(OwnCodeError, match=r"own_broken:Loss cannot be imported .*nothing_of_this"):
        load_object("python:own_broken:Loss")
    with pytest.raises(OwnCodeError, match=r"neither own_absent.py nor a folder own_absent"):
        load_object("python:own_absent.losses:Loss")
    (tmp_path / "json.py").write_text("Loss = dict")
    with pytest.raises(OwnCodeError, match="Another module of this name is imported from"):
        load_object("python:json:Loss")


def test_a_module_is_imported_only_where_it_is_named(tmp_path):
    (tmp_path / "own_noisy.py").write_text("raise SystemExit('imported')")
    code = (
        "from pathlib import Path\n"
        "from dml_core.config.loading import load_project_config\n"
        "from dml_core.studies.loading import load_study\n"
        "from dml_core.studies.own_code_checks import check_own_code\n"
        f"project = load_project_config(Path({str(ROOT / 'params.yaml')!r}))\n"
        f"check_own_code(load_study(Path({str(ROOT / 'studies/main.yaml')!r}), project))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert (run.returncode, run.stderr) == (0, "")


def test_the_source_is_part_of_the_key(module, tmp_path):
    config, plain = own_config(module, scale=1.0), resolve_trial_config({})
    first = add_own_code("code", config)
    assert first.startswith("code+")
    assert add_own_code("code", plain) == "code"
    with (tmp_path / f"{module}.py").open("a") as file:
        file.write("\n# edited\n")
    # A process imports a module once.
    assert add_own_code("code", config) == first
    own_code._hash_at.cache_clear()
    assert add_own_code("code", config) != first


def test_a_package_counts_whole_with_the_packages_that_it_imports(tmp_path):
    (tmp_path / "mine" / "losses").mkdir(parents=True)
    (tmp_path / "mine" / "__init__.py").write_text("")
    (tmp_path / "mine" / "losses" / "circle.py").write_text("import torch, shared_parts.angles\n")
    (tmp_path / "mine" / "unused.py").write_text("")
    (tmp_path / "mine" / "notes.txt").write_text("")
    (tmp_path / "shared_parts").mkdir()
    (tmp_path / "shared_parts" / "angles.py").write_text("from dml_core import seeding\n")
    (tmp_path / "other.py").write_text("")
    assert list(list_sources(["python:mine.losses.circle:Loss"], tmp_path)) == [
        "mine/__init__.py",
        "mine/losses/circle.py",
        "mine/unused.py",
        "shared_parts/angles.py",
    ]


def test_names_are_found_in_files_and_commands():
    text = """
    loss: {name: "python:a.b:Loss"}  # or python:c:Other
    --set loss.name=python:a.b:Loss
    see python:not-a-name and xpython:d:E
    """
    assert find_names(text) == ["python:a.b:Loss", "python:c:Other"]
    assert hash_sources([]) == ""
