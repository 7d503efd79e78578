"""Trains every class loss once with the same parameters and prints their scores as Markdown.

Run it with: python -m benchmarks.compare_losses. It checks that every loss learns. It is no basis
for a choice of loss: nothing is tuned, and there is one seed.
"""

from pathlib import Path

from dml_core.config import TrialConfig, load_params, resolve_trial_config
from dml_core.config.losses import CONTINUOUS_LOSSES
from dml_core.data.prepared import ImageSet, open_development, open_test
from dml_core.losses.registry import LOSSES
from dml_core.measures.model_scores import evaluate_checkpoint, evaluate_raw_pixels
from dml_core.training.checkpoint import load_newest_checkpoint
from dml_core.training.in_folder import train_in_folder

OUTPUT = Path("results") / "compare_losses"
COLUMNS = ("recall_at_1", "map_at_r", "nmi")


def main() -> None:
    """Prints a row for raw pixels and one for each loss: validation and test scores."""
    params = {k: v for k, v in load_params(Path("params.yaml")).items() if _is_of_trial(k)}
    config = resolve_trial_config(params)
    development, (test, _) = open_development(config.data), open_test(config.data)
    print("| loss | validation R@1 | MAP@R | NMI | test R@1 | MAP@R | NMI |")
    print("|---|---|---|---|---|---|---|")
    _print_row(
        "raw pixels",
        evaluate_raw_pixels(development.validation, config),
        evaluate_raw_pixels(test, config),
    )
    for name in (name for name in LOSSES if name not in CONTINUOUS_LOSSES):
        chosen = resolve_trial_config(params, {"loss.name": name})
        train_in_folder(chosen, development, OUTPUT / name)
        _print_row(name, *(_evaluate(name, chosen, s) for s in (development.validation, test)))


def _is_of_trial(key: str) -> bool:
    return key.split(".")[0] in TrialConfig.model_fields


def _evaluate(name: str, config: TrialConfig, images: ImageSet) -> dict[str, float]:
    checkpoint, _ = load_newest_checkpoint(OUTPUT / name / "checkpoints")
    assert checkpoint is not None
    return evaluate_checkpoint(checkpoint, images, evaluation=config.evaluation)


def _print_row(name: str, *scores: dict[str, float]) -> None:
    cells = [f"{each[column]:.3f}" for each in scores for column in COLUMNS]
    print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
