"""A project with an answered study and really trained models, without servers, in seconds."""

import contextlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

from dml_core.config.loading import load_params, unflatten
from dml_core.data.prepare import prepare_dataset
from dml_core.data.prepared import open_development
from dml_core.data.prepared_info import load_info
from dml_core.data.sources.registry import list_images
from dml_core.measures.results import read_scores, write_scores
from dml_core.training.checkpoint import checkpoint_path
from dml_core.training.in_folder import train_in_folder
from tasks.report import write_report
from tasks.study import StudyRequest
from tests.references.drawn_flowers import write_flowers
from tests.references.made_up_results import make_results

ROOT = Path(__file__).parents[2]
REQUEST = StudyRequest(study="flowers")
STUDY = """
question: "Which loss finds the same flower <b>again</b>?"
arms: {anchor: {loss.name: proxy_anchor}, triplet: {loss.name: triplet}}
seeds: [0, 1]
figure: {kind: bar, x: arm, y: test.recall_at_1}
"""
PARAMS = {
    "data.name": "folder",
    "data.raw": "photos",
    "data.alias": "flowers",
    "data.image_size_px": 40,
    "augmentation.input_size_px": 32,
    "sampler.batch_size": 16,
    "sampler.class_ratio": None,
    "sampler.samples_per_class": 4,
    "model.width": 8,
    "model.embedding_dim": 16,
    "training.epochs": 6,
    "evaluation.clustering": False,
    "evaluation.batch_size": 24,
}


def make_answered_project(folder: Path) -> Path:
    """Makes a project whose study `flowers` is trained and answered; its test scores are made up.

    The images are in `photos/`, drawn.
    """
    (folder / "studies").mkdir(parents=True)
    given = load_params(ROOT / "params.yaml")
    # Those of data are of drawn glyphs.
    params = {key: value for key, value in given.items() if not key.startswith("data.")} | PARAMS
    (folder / "params.yaml").write_text(json.dumps(unflatten(params)), encoding="utf-8")
    (folder / "studies" / "flowers.yaml").write_text(STUDY, encoding="utf-8")
    write_flowers(folder / "photos")
    with contextlib.chdir(folder):
        context = make_results(REQUEST)
        data = context.datasets[0]
        prepare_dataset(list_images(data), data, workers=1)
        for spec in context.study.repeat_specs({"anchor": {}, "triplet": {}}):
            work = folder / "work" / spec.trial_id
            result = train_in_folder(spec.config, open_development(data), work)
            winner = context.sweep_folder / "winners" / spec.trial_id
            newest = checkpoint_path(work / "checkpoints", result.epoch)
            shutil.copy(newest, winner / "checkpoint.pt")
            shutil.copy(work / "epochs.jsonl", winner / "epochs.jsonl")
        info = load_info(data.prepared_path)
        scores = read_scores(context.evaluate_folder)
        hashes = {"data_hash": info.content_hash, "split_hash": info.split_hash}
        write_scores(replace(scores, **hashes), context.evaluate_folder)
        write_report.fn(REQUEST, "")
    shutil.rmtree(folder / "work")
    return folder
