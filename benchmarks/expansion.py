"""The cost of Embedding Expansion in a training step of the small convnet."""

from benchmarks.drawn_data import drawn_trial
from benchmarks.rows import Row, make_row, milliseconds
from benchmarks.settings import Settings
from dml_core.config import TrialConfig, resolve_trial_config
from dml_core.config.loading import to_flat_dict
from dml_core.measures.step_cost import StepBudget, measure_configs

GROUP = "expansion"
LOSSES = ("triplet", "lifted_structure", "n_pair", "multi_similarity")
POINTS = 2
BUDGET = StepBudget(rounds=5, steps=6, warmup=3)
SHORT = StepBudget(rounds=1, steps=1, warmup=0)


def run_expansion(settings: Settings) -> list[Row]:
    """Returns two rows for each loss with expansion: time and memory of a step."""
    images = 24 if settings.short else 96
    with drawn_trial(**{"data.max_classes": 64, "data.images_per_class": images}) as config:
        configs = {
            f"{loss} {points}": _choose(config, loss, points)
            for loss in LOSSES
            for points in (0, POINTS)
        }
        measured = measure_configs(configs, SHORT if settings.short else BUDGET).scalars
    rows: list[Row] = []
    for loss in LOSSES:
        time, memory = (
            [list(measured[metric][f"{loss} {points}"].values()) for points in (POINTS, 0)]
            for metric in ("cost.step_seconds", "cost.memory_mib")
        )
        rows.append(
            make_row(
                GROUP,
                f"{loss}, {POINTS} points: step",
                ours=milliseconds(time[0]),
                theirs=milliseconds(time[1]),
                target=1.3,
                against="the same without points",
            )
        )
        rows.append(
            make_row(
                GROUP,
                f"{loss}, {POINTS} points: memory",
                ours=memory[0],
                theirs=memory[1],
                target=1.1,
                unit="MiB",
                against="the same without points",
            )
        )
    return rows


def _choose(config: TrialConfig, loss: str, points: int) -> TrialConfig:
    kept = {
        key: value for key, value in to_flat_dict(config).items() if key.split(".")[0] != "loss"
    }
    return resolve_trial_config(kept, {"loss.name": loss, "loss.expansion.points": points})
