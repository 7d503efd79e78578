"""A sweep of 24 trials of a small network against 24 sequential runs of a plain script."""

import contextlib
import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.image_folders import write_pictures
from benchmarks.plain.fine_tune import Network, make_loss
from benchmarks.plain_runs import PlainRun, run_script
from benchmarks.projects import Project, open_served_project
from benchmarks.rows import Row, make_row
from benchmarks.settings import Settings
from benchmarks.timing import rounds_within
from dml_core.analysis.estimates import estimate_mean
from dml_core.config import TrialConfig, load_trial_config
from dml_core.losses.registry import build_loss_from_config
from dml_core.models import build_model
from dml_core.trials.table import read_trials
from tasks.study import StudyRequest, load_context

GROUP = "fine_tuning"
STUDY = "tuned"
LOSSES = ("proxy_anchor", "norm_softmax", "multi_similarity", "triplet")
RATES = (0.001, 0.002, 0.004)
SEEDS = (0, 1)
COMPARED = ((0.002, 0), (0.002, 1), (0.001, 0))
"""Learning rate and seed of the scripts of each round."""
MOST_SECONDS = 350.0
"""Time limit for all rounds after the first."""
FIXED = {
    "model.width": 16,
    "sampler.batch_size": 84,
    "sampler.class_ratio": None,
    "sampler.samples_per_class": 4,
    "training.epochs": 6,
    "training.select": "last",
    "evaluation.clustering": False,
}
TOLERANCE = 1e-5
"""Relative; both compute in single precision, in different order."""
PROXY_NAMES = {"proxy_anchor": "proxies", "norm_softmax": "W"}


def run_fine_tuning(settings: Settings) -> list[Row]:
    """Returns the row of the sweep; a short run compares the first loss only."""
    if settings.short:
        return [
            _row(f"first loss, {loss}", [1.0], [1.0], difference=compare_first_loss(loss))
            for loss in LOSSES
        ]
    project = open_served_project()
    project.write_study(STUDY, _make_study())
    project.run("stage", "prepare")
    with tempfile.TemporaryDirectory() as name:
        _write_images(project, Path(name))
        rounds = [
            _run_round(project, Path(name), *COMPARED[number])
            for number in rounds_within(MOST_SECONDS, most=len(COMPARED))
        ]
    count = len(LOSSES) * len(RATES) * len(SEEDS)
    plain = {trial: run for each in rounds for trial, run in each.plain.items()}
    low, high = _compare_quality(project, plain)
    note = (
        f"theirs extrapolated from {len(plain)} of {count} trainings, with the start of "
        f"Python; R@1 ours less theirs {low:+.3f} to {high:+.3f}"
    )
    row = _row(
        f"{count} trainings on glyphs",
        [3600 / each.sweep_seconds for each in rounds],
        [3600 / (count * each.script_seconds) for each in rounds],
        note=note,
        difference=max(0.0, low, -high),
    )
    return [row]


def _row(
    name: str,
    ours: list[float],
    theirs: list[float],
    *,
    difference: float,
    note: str = "",
) -> Row:
    return make_row(
        GROUP,
        name,
        ours=ours,
        theirs=theirs,
        target=3.0,
        direction="at least",
        unit="sweeps/h",
        against="plain scripts one after another, 2 threads",
        note=note,
        difference=difference,
        tolerance=TOLERANCE,
    )


def _make_study() -> dict[str, Any]:
    return {
        "question": "Which loss and learning rate?",
        "arms": {
            _arm(loss, rate): {"loss.name": loss, "optimizer.learning_rate": rate}
            for loss in LOSSES
            for rate in RATES
        },
        "fixed": FIXED,
        "seeds": list(SEEDS),
    }


def _arm(loss: str, rate: float) -> str:
    return f"{loss}-{rate:g}".replace(".", "_")


@dataclass(frozen=True)
class Round:
    """One sweep, and scripts for some of its trials."""

    sweep_seconds: float
    plain: dict[str, PlainRun]
    """By trial."""

    @property
    def script_seconds(self) -> float:
        """Mean time of a script."""
        return sum(run.seconds for run in self.plain.values()) / len(self.plain)


def _run_round(project: Project, folder: Path, rate: float, seed: int) -> Round:
    """Runs the sweep, and one script for each loss."""
    # Otherwise the sweep would reuse the trials of an earlier round.
    for name in (".sweeps", ".trials"):
        shutil.rmtree(project.folder / "results" / name, ignore_errors=True)
    seconds = project.run("stage", "sweep", STUDY)
    plain = {
        f"{_arm(loss, rate)}-seed{seed}": run_script(
            "fine_tune",
            folder,
            images=folder / "images",
            loss=loss,
            learning_rate=rate,
            seed=seed,
            epochs=FIXED["training.epochs"],
        )
        for loss in LOSSES
    }
    return Round(seconds, plain)


def _write_images(project: Project, folder: Path) -> None:
    with contextlib.chdir(project.folder):
        context = load_context(StudyRequest(study=STUDY))
        write_pictures(context.datasets[0], folder / "images")


def _compare_quality(project: Project, plain: dict[str, PlainRun]) -> tuple[float, float]:
    """Returns the 95 % interval of our R@1 minus theirs over the trials that both ran."""
    path = project.folder / "results" / STUDY / "sweep" / "trials.parquet"
    scores = {r.spec.trial_id: r.validation["recall_at_1"] for r in read_trials(path)}
    differences = [scores[t] - run.result["recall_at_1"][-1] for t, run in plain.items()]
    found = estimate_mean(differences)
    return float(found.low), float(found.high)


def compare_first_loss(loss: str) -> float:
    """Returns the relative difference of our first loss from the script's, with equal weights."""
    config = load_trial_config(
        Path(__file__).parents[1] / "params.yaml",
        [*(f"{key}={json.dumps(value)}" for key, value in FIXED.items()), f"loss.name={loss}"],
    )
    ours, theirs = _compute_losses(config, loss)
    return abs(ours - theirs) / abs(ours)


def _compute_losses(config: TrialConfig, name: str) -> tuple[float, float]:
    torch.manual_seed(0)
    num_classes, dim = 21, config.model.embedding_dim
    model = build_model(config, in_channels=1)
    loss = build_loss_from_config(config.loss, num_classes=num_classes, embedding_dim=dim)
    network = Network(width=config.model.width, embedding_dim=dim)
    stored = zip(network.state_dict(), model.state_dict().values(), strict=True)
    network.load_state_dict(dict(stored))
    plain, proxies = make_loss(name, num_classes=num_classes, embedding_dim=dim)
    if proxies:
        with torch.no_grad():
            own = next(iter(loss.parameters()))
            proxies[0].copy_(own.t() if PROXY_NAMES[name] == "W" else own)
    pixels = np.random.default_rng(0).integers(0, 256, size=(84, 1, 28, 28), dtype=np.uint8)
    images, labels = torch.from_numpy(pixels), torch.arange(num_classes).repeat_interleave(4)
    scaled = (images.float() / 255 - 0.5) / 0.5
    with torch.no_grad():
        return float(loss(model(images), labels)), float(plain(network(scaled), labels))
