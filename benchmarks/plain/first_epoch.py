"""One epoch of two trainings by Ray Tune in a flow of Prefect: what these take by themselves.

It does not use this project: python benchmarks/plain/first_epoch.py --output FILE
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from prefect import flow
from ray import init, shutdown, tune

NUM_BATCHES, BATCH_SIZE, SIZE_PX = 8, 30, 28


def train(config: dict[str, Any]) -> None:
    """Trains a small network on noise for an epoch."""
    import torch
    from torch import nn

    torch.manual_seed(config["seed"])
    network = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(64))
    optimizer = None
    for _ in range(NUM_BATCHES):
        loss = network(torch.randn(BATCH_SIZE, 1, SIZE_PX, SIZE_PX)).square().mean()
        optimizer = optimizer or torch.optim.AdamW(network.parameters())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    tune.report({"loss": loss.item(), "ended": time.time()})


@flow
def sweep(folder: str) -> list[float]:
    """Returns when the epoch of each trial ended."""
    init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    tuner = tune.Tuner(
        tune.with_resources(train, {"cpu": 1}),
        param_space={"seed": tune.grid_search([0, 1])},
        tune_config=tune.TuneConfig(reuse_actors=True),
        run_config=tune.RunConfig(storage_path=folder, name="plain", verbose=0),
    )
    ended = [float(result.metrics["ended"]) for result in tuner.fit() if result.metrics]
    shutdown()
    return ended


def main() -> None:
    """Writes when the first and the last epoch ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    output = parser.parse_args().output
    ended = sweep(str(output.resolve().parent))
    output.write_text(json.dumps({"first": min(ended), "last": max(ended)}), encoding="utf-8")


if __name__ == "__main__":
    main()
