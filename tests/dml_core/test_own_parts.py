"""A reader, a sampler, a network and a loss of the project folder, in one training."""

import re
import sys

import pytest

from dml_core.config import ConfigError, resolve_trial_config
from dml_core.data.prepare import prepare_dataset
from dml_core.data.prepared import open_development
from dml_core.data.records import DatasetError
from dml_core.data.sources.registry import list_images
from dml_core.studies.own_code_checks import find_own_problems
from dml_core.training.checkpoint import load_checkpoint, save_checkpoint
from dml_core.training.trial import run_trial
from tests.references.tiny_trials import TINY

PARTS = """
import numpy as np
from torch import nn

from dml_core.data.records import ImageRecord


def list_images(raw, num_classes, broken=False):
    if broken:
        yield "an image"
        return
    drawn = np.random.default_rng(0)
    centers = drawn.integers(0, 256, (num_classes, 16, 16))
    for number in range(8 * num_classes):
        noise = drawn.integers(-20, 20, (16, 16))
        pixels = np.clip(centers[number % num_classes] + noise, 0, 255).astype(np.uint8)
        name = f"class {number % num_classes:02d}"
        yield ImageRecord(f"{name}/{number:03d}", name, "undecided", pixels=pixels)


class Pairs:
    def __init__(self, labels, batch_size, seed, stride=1):
        self.labels, self.batch_size = np.asarray(labels), batch_size
        self.seed, self.stride = seed, stride

    def __len__(self):
        return 3

    def epoch_batches(self, epoch):
        drawn = np.random.default_rng([self.seed, epoch])
        for _ in range(3):
            classes = drawn.permutation(np.unique(self.labels))[: self.batch_size // 4]
            yield np.concatenate([np.flatnonzero(self.labels == c)[:4] for c in classes])


class Outside(Pairs):
    def epoch_batches(self, epoch):
        yield [len(self.labels)] * 4


def make_network(in_channels):
    return nn.Sequential(nn.Flatten(), nn.Linear(in_channels * 256, 32), nn.ReLU())


def make_sequence(in_channels):
    return nn.Unflatten(1, (1, 1, in_channels))


class Spread(nn.Module):
    def forward(self, embeddings, labels):
        same = labels[:, None] == labels
        return (embeddings @ embeddings.T * (0.5 - same.float())).mean() + 1
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("parts")
    (path / "own_parts.py").write_text(PARTS)
    return path


@pytest.fixture(autouse=True)
def in_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))


def make_config(**changes):
    own = {
        "data.name": "python:own_parts:list_images",
        "data.options.num_classes": 12,
        "data.image_size_px": 16,
        "data.color": "gray",
        "sampler.name": "python:own_parts:Pairs",
        "sampler.batch_size": 16,
        "model.backbone": "python:own_parts:make_network",
        "model.embedding_dim": 8,
        "model.pooling": "avg",
        "loss.name": "python:own_parts:Spread",
        "training.epochs": 2,
        "evaluation.clustering": False,
    }
    changed = {key.replace("__", "."): value for key, value in changes.items()}
    return resolve_trial_config({"evaluation.ndcg_at": TINY["evaluation.ndcg_at"]}, own, changed)


def test_a_training_of_own_parts_learns_and_resumes_bit_for_bit(folder):
    config = make_config()
    assert find_own_problems(config) == []
    prepare_dataset(list_images(config.data), config.data, workers=1)
    data = open_development(config.data)
    assert data.train.num_classes + data.validation.num_classes == 6
    kept = {}

    def keep(report, checkpoint):
        kept[report.epoch] = folder / f"{report.epoch}.pt"
        save_checkpoint(checkpoint, kept[report.epoch])

    whole = run_trial(config, data, on_epoch_end=keep)
    assert whole.outcome == "finished"
    first = load_checkpoint(kept[1])
    resumed = run_trial(config, data, on_epoch_end=lambda *_: None, resume_from=first)
    assert resumed.reports[-1].train_loss == whole.reports[-1].train_loss
    assert resumed.reports[-1].validation == whole.reports[-1].validation
    assert "+" in first.made_with["training code"]


def test_what_a_reader_returns_is_checked(folder):
    with pytest.raises(DatasetError, match=r"must return a .*ImageRecord.* Got 1 others"):
        list_images(make_config(data__options__broken=True).data)
    with pytest.raises(DatasetError, match=r"data.options.nmu is not .*"):
        list_images(make_config(data__options__nmu=1).data)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sampler__options__strid": 2}, "sampler.options.strid is not .* 'stride'"),
        ({"sampler__name": "python:own_parts:Outside"}, "must yield positions of training images"),
        ({"sampler__name": "python:own_parts:Spread"}, "must have the method __len__"),
        ({"model__backbone": "python:own_parts:make_sequence"}, r"must return features \(B, F\)"),
        ({"model__backbone": "python:own_parts:Pairs"}, r"model.backbone.labels is missing"),
        ({"model__weights": "imagenet"}, "needs a backbone of torchvision or timm"),
    ],
)
def test_parts_that_cannot_train_are_reported_before_the_sweep(changes, said):
    (problem, *_) = find_own_problems(make_config(**changes))
    assert re.search(said, problem)


def test_names_that_are_no_own_code_are_refused():
    for key in ("sampler.name", "data.name", "model.backbone", "loss.name"):
        with pytest.raises(ConfigError, match=key):
            resolve_trial_config({key: "python:no-module"})
