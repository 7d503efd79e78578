"""All results of a study's winners, by arm and seed."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from dml_core.config import resolve_trial_config
from dml_core.measures.results import MEASURES_FILE, Curve, read_scores
from dml_core.studies.metrics import has_curve, match_star, split_reducer
from dml_core.studies.resolved import ResolvedStudy
from dml_core.studies.result_checks import is_drawn_by_training
from dml_core.trials.journal import read_epochs, selected_epoch


def answer_metric(study: ResolvedStudy) -> str:
    """Returns the metric that decides a study's verdicts, such as `test.recall_at_1`.

    It is the first metric of the main figure. A figure of curves or tables has no single number
    per training; then it is recall_at_1 (or at the first K), or nDCG at the first K if the
    baseline is selected by nDCG.
    """
    figure = study.definition.figure
    if not is_drawn_by_training(figure):
        return figure.y[0]
    config = study.arm_config(study.baseline)
    if config.selection_metric.startswith("ndcg"):
        return f"test.{config.selection_metric}"
    ranks = config.evaluation.recall_at
    return f"test.recall_at_{1 if 1 in ranks else ranks[0]}"


ByArm = dict[str, dict[int, Any]]
Epoch = Mapping[str, Any]


@dataclass(frozen=True)
class Training:
    """The epochs of one winner's training."""

    epochs: list[dict[str, Any]]
    selected: Epoch | None
    """The selected epoch; None without any validation."""


@dataclass(frozen=True)
class Observations:
    """The results of a study; missing arms and seeds are absent."""

    scores: dict[str, dict[int, dict[str, float]]] = field(default_factory=dict)
    """Test scores by arm, seed and name."""
    trainings: dict[str, dict[int, Training]] = field(default_factory=dict)
    """By arm and seed."""
    untrained: dict[str, dict[str, float]] = field(default_factory=dict)
    """Test scores of what needs no training, by its name and the score's."""
    measured_scalars: dict[str, dict[str, dict[int, float]]] = field(default_factory=dict)
    """By metric, arm and seed."""
    measured_curves: dict[str, dict[str, dict[int, Curve]]] = field(default_factory=dict)
    """By metric, arm and seed."""

    def scalars(self, metric: str) -> dict[str, dict[int, float]]:
        """Returns one number by arm and seed; `first.`, `last.` or `mean.` reduces a curve.

        Without a reducer, `validation.` takes the selected epoch and `train.` the last.
        """
        reducer, name = split_reducer(metric)
        if reducer:
            curves = self.curves(name, x=natural_axis(name))
            return _map(curves, lambda curve: _reduce(curve, reducer))
        kind, _, rest = name.partition(".")
        if kind == "test":
            return _map(self.scores, lambda scores: scores.get(rest))
        if kind == "validation":
            return _map(self.trainings, lambda t: _read(t.selected, "validation", rest))
        if kind == "train":
            curves = self.curves(name, x="epoch")
            return _map(curves, lambda curve: _reduce(curve, "last"))
        return _map(self.measured_scalars.get(name, {}), lambda value: value)

    def curves(self, metric: str, *, x: str) -> dict[str, dict[int, Curve]]:
        """Returns a curve by arm and seed.

        Args:
            metric: a metric of `validation`, `train` or `gradient`, one with a star, or a table,
                of which the off-diagonal mean is taken.
            x: `epoch`, `seconds` of training, `hardness`, or `*`.
        """
        kind, _, name = metric.partition(".")
        if x == "*":
            return self._star_curves(kind, name)
        if kind in ("validation", "train", "table"):
            return _map(self.trainings, lambda t: _trace(t.epochs, kind, name, x))
        return _map(self.measured_curves.get(metric, {}), lambda curve: sorted(curve) or None)

    def untrained_curves(self, metric: str) -> dict[str, Curve]:
        """Returns what no training gives at each number of a test metric with a star, by name."""
        kind, _, pattern = metric.partition(".")
        if kind != "test" or "*" not in pattern:
            return {}
        found = {name: _trace_star(pattern, scores) for name, scores in self.untrained.items()}
        return {name: curve for name, curve in found.items() if curve}

    def tables(self, name: str) -> dict[str, dict[int, dict[int, list[list[float]]]]]:
        """Returns a table by arm, seed and epoch."""
        name = name.removeprefix("table.")
        return _map(
            self.trainings,
            lambda t: (
                {int(e["epoch"]): e["tables"][name] for e in t.epochs if name in _tables(e)} or None
            ),
        )

    def _star_curves(self, kind: str, pattern: str) -> dict[str, dict[int, Curve]]:
        if kind == "test":
            return _map(self.scores, lambda scores: _trace_star(pattern, scores))
        return _map(
            self.trainings,
            lambda t: _trace_star(pattern, t.selected["validation"] if t.selected else {}),
        )


def load_observations(sweep_folder: Path, evaluate_folder: Path) -> Observations:
    """Reads the results of a sweep and its evaluation; measures.json is optional."""
    trainings: dict[str, dict[int, Training]] = {}
    for folder in sorted((sweep_folder / "winners").iterdir()):
        arm, _, seed = folder.name.rpartition("-seed")
        trainings.setdefault(arm, {})[int(seed)] = _load_training(folder)
    path = evaluate_folder / MEASURES_FILE
    measures = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    test = read_scores(evaluate_folder)
    return Observations(
        scores=test.scores,
        untrained=test.untrained,
        trainings=trainings,
        measured_scalars=_with_seeds(measures.get("scalars", {}), float),
        measured_curves=_with_seeds(measures.get("curves", {}), _to_curve),
    )


def natural_axis(metric: str) -> str:
    """Returns the x axis of a metric's curve."""
    assert has_curve(metric), metric
    if "*" in metric:
        return "*"
    return "hardness" if metric.startswith("gradient.") else "epoch"


def _load_training(folder: Path) -> Training:
    epochs = read_epochs(folder)
    knobs = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config = resolve_trial_config(knobs, source=str(folder / "config.json"))
    return Training(epochs, selected_epoch(epochs, config))


def _with_seeds(plain: Mapping[str, Any], read: Callable[[Any], Any]) -> dict[str, ByArm]:
    return {
        metric: {
            arm: {int(seed): read(value) for seed, value in by_seed.items()}
            for arm, by_seed in by_arm.items()
        }
        for metric, by_arm in plain.items()
    }


def _to_curve(points: list[list[float]]) -> Curve:
    return [(float(x), float(y)) for x, y in points if _is_finite(y)]


def _map(by_arm: Mapping[str, Mapping[int, Any]], change: Callable[[Any], Any]) -> ByArm:
    """Maps each seed's value; drops None, values that are not finite, and empty arms."""
    changed = {
        arm: {seed: change(value) for seed, value in sorted(by_seed.items())}
        for arm, by_seed in by_arm.items()
    }
    kept = {
        arm: {seed: value for seed, value in by_seed.items() if _is_there(value)}
        for arm, by_seed in changed.items()
    }
    return {arm: by_seed for arm, by_seed in kept.items() if by_seed}


def _trace(epochs: list[dict[str, Any]], kind: str, name: str, x: str) -> Curve | None:
    curve, seconds = [], 0.0
    for epoch in epochs:
        seconds += float(epoch["train_seconds"])
        value = _read(epoch, kind, name)
        if value is not None and _is_finite(value):
            curve.append((seconds if x == "seconds" else float(epoch["epoch"]), float(value)))
    return curve or None


def _trace_star(pattern: str, numbers: Mapping[str, float]) -> Curve | None:
    found = ((match_star(pattern, name), value) for name, value in numbers.items())
    return sorted((x, y) for x, y in found if x is not None and _is_finite(y)) or None


def _read(epoch: Epoch | None, kind: str, name: str) -> float | None:
    if epoch is None:
        return None
    if kind == "table":
        return _off_diagonal_mean(_tables(epoch).get(name))
    value: float | None
    if kind == "validation":
        value = epoch["validation"].get(name)
    elif name == "loss":
        value = epoch.get("train_loss")
    elif name == "active_fraction":
        value = epoch.get("active_fraction")
    else:
        value = epoch.get("diagnostics", {}).get(name)
    return value


def _tables(epoch: Epoch) -> dict[str, list[list[float]]]:
    return epoch.get("tables") or {}


def _off_diagonal_mean(table: list[list[float]] | None) -> float | None:
    rows = table or []
    values = [v for r, row in enumerate(rows) for c, v in enumerate(row) if r != c]
    return fmean(values) if values else None


def _reduce(curve: Curve, reducer: str) -> float:
    values = [y for _, y in curve]
    return fmean(values) if reducer == "mean" else values[0 if reducer == "first" else -1]


def _is_there(value: Any) -> bool:
    return value is not None and (not isinstance(value, int | float) or _is_finite(value))


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
