"""dml evaluate and dml baseline: scores of a trained model, and those that it must beat."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.terminal import (
    DEFAULT_PARAMS,
    ParamsOption,
    SetOption,
    SplitOption,
    print_scores,
    say,
)

if TYPE_CHECKING:
    from dml_core.config.data import DataBase
    from dml_core.data.prepared import ImageSet
    from dml_core.data.prepared_info import PreparedInfo
    from dml_core.training.checkpoint import Checkpoint

commands = typer.Typer()


@commands.command()
def evaluate(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint file, or a run's folder.")],
    set_: SetOption = None,
    split: SplitOption = "test",
    output: Annotated[
        Path | None, typer.Option(help="JSON file to write; by default beside the checkpoint.")
    ] = None,
) -> None:
    """Evaluate a trained model on the test classes; print a table and write JSON."""
    from dml_core.config.loading import parse_overrides, resolve_trial_config, to_flat_dict
    from dml_core.measures.model_scores import evaluate_checkpoint
    from tasks.step_progress import shown_step

    model, found = _find_checkpoint(checkpoint)
    stored = to_flat_dict(model.config)
    config = resolve_trial_config(stored, parse_overrides(set_ or []), source="--set")
    images, info = _open_split(config.data, split)
    if info.content_hash != model.data_hash:
        raise ValueError(
            f"{config.data.prepared_path} is not the data that this model was trained on: its "
            f"content hash is {info.content_hash}, the model's {model.data_hash}. "
            "Prepare the data with the model's parameters (config.json beside its checkpoints)."
        )
    with shown_step(f"evaluating {found.name}") as progress:
        scores = evaluate_checkpoint(
            model, images, evaluation=config.evaluation, on_progress=progress.say
        )
    print_scores(
        f"{model.config.loss.name}, epoch {model.selected_epoch}, "
        f"{split} of {config.data.folder_name}",
        scores,
    )
    is_folder = checkpoint.is_dir()
    name = f"{'evaluation' if is_folder else checkpoint.stem}-{split}.json"
    target = output or (checkpoint if is_folder else checkpoint.parent) / name
    record = {
        "checkpoint": found.name,
        "epoch": model.selected_epoch,
        "split": split,
        "data_hash": info.content_hash,
        "split_hash": info.split_hash,
        "scores": scores,
    }
    target.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    say(f"written to {target}")


@commands.command()
def baseline(
    params: ParamsOption = DEFAULT_PARAMS,
    set_: SetOption = None,
    of: Annotated[
        str, typer.Option(help="pixels, or features: those of the network before training.")
    ] = "pixels",
    split: SplitOption = "validation",
) -> None:
    """Evaluate raw pixels or untrained features: the scores that a model must beat."""
    from dml_core.config import load_trial_config
    from dml_core.measures.model_scores import evaluate_raw_pixels, evaluate_untrained_features
    from tasks.step_progress import shown_step

    kinds = {"pixels": evaluate_raw_pixels, "features": evaluate_untrained_features}
    if of not in kinds:
        raise ValueError(f"--of must be pixels or features. Got {of!r}.")
    config = load_trial_config(params, set_ or [])
    images, _ = _open_split(config.data, split)
    with shown_step(f"evaluating {of}"):
        scores = kinds[of](images, config)
    print_scores(f"{of}, {split} of {config.data.folder_name}, no training", scores)


def _find_checkpoint(path: Path) -> "tuple[Checkpoint, Path]":
    from dml_core.training.checkpoint import load_checkpoint, load_newest_checkpoint

    if not path.is_dir():
        return load_checkpoint(path), path
    folder = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    checkpoint, refusals = load_newest_checkpoint(folder)
    for refusal in refusals:
        say(f"{refusal} The one before it is used.")
    if checkpoint is None:
        raise FileNotFoundError(f"there is no checkpoint in {path}. Train one with: dml train")
    return checkpoint, folder


def _open_split(config: "DataBase", split: str) -> "tuple[ImageSet, PreparedInfo]":
    """Returns the validation or the test images, and the description of their dataset."""
    from dml_core.data.prepared import open_development, open_test
    from dml_core.data.writing import TEST
    from tasks.versioning.restoring import ensure_whole

    if split == "test":
        ensure_whole(config, (TEST,))
        return open_test(config)
    if split == "validation":
        ensure_whole(config)
        development = open_development(config)
        return development.validation, development.info
    raise ValueError(f"--split must be test or validation. Got {split!r}.")
