"""dml baseline: what needs no training."""

from pathlib import Path

from dml_core.config import load_trial_config
from dml_core.measures.model_scores import evaluate_raw_pixels, evaluate_untrained_features
from flows.commands.splits import open_split
from flows.commands.terminal import print_scores

_KINDS = {"pixels": evaluate_raw_pixels, "features": evaluate_untrained_features}


def run_baseline(params: Path, assignments: list[str], *, of: str, split: str) -> None:
    """Prints the scores of raw pixels or of the network before training."""
    if of not in _KINDS:
        raise ValueError(f"--of must be pixels or features. Got {of!r}.")
    config = load_trial_config(params, assignments)
    images, _ = open_split(config.data, split)
    scores = _KINDS[of](images, config)
    print_scores(f"{of}, {split} of {config.data.folder_name}, no training", scores)
