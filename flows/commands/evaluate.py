"""dml evaluate: a trained model against the test classes."""

import json
from pathlib import Path

from dml_core.config.loading import parse_overrides, resolve_trial_config, to_flat_dict
from dml_core.measures.model_scores import evaluate_checkpoint
from dml_core.training.checkpoint import Checkpoint, load_checkpoint, load_newest_checkpoint
from flows.commands.splits import open_split
from flows.commands.terminal import print_scores, say


def run_evaluate(path: Path, assignments: list[str], *, split: str, output: Path | None) -> None:
    """Evaluates a checkpoint, prints every metric and writes them as JSON."""
    checkpoint, found = _find_checkpoint(path)
    stored = to_flat_dict(checkpoint.config)
    config = resolve_trial_config(stored, parse_overrides(assignments), source="--set")
    images, info = open_split(config.data, split)
    if info.content_hash != checkpoint.data_hash:
        raise ValueError(
            f"{config.data.prepared_path} is not the data that this model was trained on: its "
            f"content hash is {info.content_hash}, the model's {checkpoint.data_hash}. "
            "Prepare the data with the model's parameters (config.json beside its checkpoints)."
        )
    scores = evaluate_checkpoint(checkpoint, images, evaluation=config.evaluation)
    print_scores(
        f"{checkpoint.config.loss.name}, epoch {checkpoint.selected_epoch}, "
        f"{split} of {config.data.folder_name}",
        scores,
    )
    name = "evaluation" if path.is_dir() else path.stem
    target = output or (path if path.is_dir() else path.parent) / f"{name}-{split}.json"
    record = {
        "checkpoint": found.name,
        "epoch": checkpoint.selected_epoch,
        "split": split,
        "data_hash": info.content_hash,
        "split_hash": info.split_hash,
        "scores": scores,
    }
    target.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    say(f"written to {target}")


def _find_checkpoint(path: Path) -> tuple[Checkpoint, Path]:
    if not path.is_dir():
        return load_checkpoint(path), path
    folder = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    checkpoint, refusals = load_newest_checkpoint(folder)
    for refusal in refusals:
        say(f"{refusal} The one before it is used.")
    if checkpoint is None:
        raise FileNotFoundError(f"there is no checkpoint in {path}. Train one with: dml train")
    return checkpoint, folder
