"""Trains two networks as first_epoch.py does, then evaluates and records them: the whole errand.

It evaluates both, records them in MLflow, registers the better one, draws a figure and adds the
files to DVC. It does not use this project:
python benchmarks/plain/answered.py --output FILE, in a folder with git and DVC
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from first_epoch import BATCH_SIZE, NUM_BATCHES, SIZE_PX
from prefect import flow, task
from ray import init, shutdown, tune

NUM_TEST, NUM_CLASSES = 500, 10


def build() -> Any:
    """Returns an untrained network."""
    from torch import nn

    flat = 8 * (SIZE_PX - 2) ** 2
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(flat, 64))


def train(config: dict[str, Any]) -> None:
    """Trains a small network on noise for an epoch and writes its weights."""
    import torch

    torch.manual_seed(config["seed"])
    network = build()
    optimizer = torch.optim.AdamW(network.parameters())
    for _ in range(NUM_BATCHES):
        loss = network(torch.randn(BATCH_SIZE, 1, SIZE_PX, SIZE_PX)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.save(network.state_dict(), Path(config["folder"]) / f"{config['seed']}.pt")
    tune.report({"loss": loss.item(), "ended": time.time()})


@task
def evaluate(folder: Path) -> list[float]:
    """Returns the recall at 1 of both networks on noise."""
    import torch

    images = torch.randn(NUM_TEST, 1, SIZE_PX, SIZE_PX)
    labels = torch.arange(NUM_TEST) % NUM_CLASSES
    scores = []
    for seed in (0, 1):
        network = build()
        network.load_state_dict(torch.load(folder / f"{seed}.pt", weights_only=True))
        with torch.inference_mode():
            vectors = torch.nn.functional.normalize(network(images))
        similar = (vectors @ vectors.T).fill_diagonal_(-2)
        scores.append(float((labels[similar.argmax(1)] == labels).float().mean()))
    return scores


@task
def record(folder: Path, scores: list[float]) -> None:
    """Records both networks in MLflow, and registers the better one."""
    import mlflow
    import torch

    mlflow.set_experiment("plain")
    best = max(range(len(scores)), key=scores.__getitem__)
    for seed, score in enumerate(scores):
        with mlflow.start_run(run_name=f"seed{seed}"):
            mlflow.log_param("seed", seed)
            mlflow.log_metric("recall_at_1", score)
            mlflow.log_artifact(str(folder / f"{seed}.pt"))
            if seed == best:
                network = build()
                network.load_state_dict(torch.load(folder / f"{seed}.pt", weights_only=True))
                example = torch.zeros(1, 1, SIZE_PX, SIZE_PX).numpy()
                mlflow.pytorch.log_model(
                    network, name="model", registered_model_name="plain", input_example=example
                )


@task
def report(folder: Path, scores: list[float]) -> None:
    """Draws both scores."""
    from matplotlib.figure import Figure

    figure = Figure()
    figure.subplots().bar(["0", "1"], scores)
    figure.savefig(folder / "scores.png")


@flow
def sweep(folder: Path) -> list[float]:
    """Returns when the epoch of each trial ended."""
    init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    tuner = tune.Tuner(
        tune.with_resources(train, {"cpu": 1}),
        param_space={"seed": tune.grid_search([0, 1]), "folder": str(folder)},
        tune_config=tune.TuneConfig(reuse_actors=True),
        run_config=tune.RunConfig(storage_path=str(folder.parent), name="plain", verbose=0),
    )
    ended = [float(result.metrics["ended"]) for result in tuner.fit() if result.metrics]
    scores = evaluate(folder)
    record(folder, scores)
    report(folder, scores)
    dvc = Path(sys.executable).with_name("dvc")
    subprocess.run([str(dvc), "add", "--quiet", folder.name], cwd=folder.parent, check=True)
    shutdown()
    return ended


def main() -> None:
    """Writes when the first and the last epoch ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    output = parser.parse_args().output
    folder = output.resolve().parent / "made"
    folder.mkdir()
    ended = sweep(folder)
    output.write_text(json.dumps({"first": min(ended), "last": max(ended)}), encoding="utf-8")


if __name__ == "__main__":
    main()
