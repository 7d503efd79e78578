"""What is known of one trained model of a study: its scores, its data and its settings."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from dml_core.analysis.estimates import estimate_interval
from dml_core.analysis.observations import answer_metric
from dml_core.config.data import DataBase
from dml_core.config.loading import to_flat_dict
from dml_core.data.prepared_info import load_info
from dml_core.data.records import DatasetError
from dml_core.measures.results import StudyScores, WinnerFolder
from dml_core.studies.metrics import unit_of
from tasks.study import StudyContext

SETTINGS = (
    "model.backbone",
    "model.weights",
    "model.embedding_dim",
    "loss.name",
    "trunk.train",
    "training.epochs",
)
"""Keys of every model; those that its study varies or tunes come on top."""


@dataclass(frozen=True)
class Score:
    """One test metric of a model, beside those of the same arm with all seeds."""

    metric: str
    value: float
    mean: float
    """Over the seeds of the arm."""
    interval: tuple[float, float] | None
    """95 % interval of the mean; None with one seed."""
    num_seeds: int

    @property
    def shown_value(self) -> str:
        """The model's own score, with its unit."""
        return self._show(self.value)

    @property
    def shown_mean(self) -> str:
        """The mean over the seeds, with its interval."""
        unit = unit_of(f"test.{self.metric}")
        if self.interval is None:
            return f"{self._show(self.mean)} (one seed, no interval)"
        low, high = (unit.show(bound) for bound in self.interval)
        return f"{self._show(self.mean)} ({low} to {high}, {self.num_seeds} seeds)"

    def _show(self, value: float) -> str:
        unit = unit_of(f"test.{self.metric}")
        return f"{unit.show(value)}{unit.name}"


@dataclass(frozen=True)
class DataFacts:
    """The dataset of a model."""

    name: str
    """Name of its prepared folder."""
    content_hash: str
    split_hash: str
    counts: Mapping[str, int]
    """Images and classes to develop on and held back; empty where the data are not here."""


@dataclass(frozen=True)
class ModelFacts:
    """A model, for people: what it is, how good it is, and where it comes from."""

    study: str
    """Name of the study's results, with its profile."""
    question: str
    arm: str
    seed: int
    metric: str
    """The test metric by which the study is answered, without its prefix."""
    scores: tuple[Score, ...]
    """That metric first; none before the evaluation."""
    data: DataFacts
    settings: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Arm and seed."""
        return f"{self.arm}-seed{self.seed}"


def collect_model_facts(
    context: StudyContext, winner: WinnerFolder, scores: StudyScores | None
) -> ModelFacts:
    """Returns the facts of a winner; without scores where its study was not evaluated."""
    config = winner.load_config()
    metric = answer_metric(context.study).removeprefix("test.")
    by_seed = scores.scores.get(winner.arm, {}) if scores else {}
    return ModelFacts(
        study=context.request.folder_name,
        question=context.study.definition.question,
        arm=winner.arm,
        seed=winner.seed,
        metric=metric,
        scores=_list_scores(by_seed, winner.seed, first=metric),
        data=_describe_data(config.data, scores),
        settings=_list_settings(context, winner.arm, to_flat_dict(config)),
    )


def _list_scores(
    by_seed: Mapping[int, Mapping[str, float]], seed: int, *, first: str
) -> tuple[Score, ...]:
    own = by_seed.get(seed, {})
    names = [name for name in own if not name.startswith("num_")]
    found = []
    for name in sorted(names, key=lambda each: each != first):
        values = [numbers[name] for numbers in by_seed.values() if name in numbers]
        is_share = unit_of(name).is_share
        interval = estimate_interval(values, is_share=is_share) if len(values) > 1 else None
        found.append(Score(name, own[name], fmean(values), interval, len(values)))
    return tuple(found)


def _describe_data(config: DataBase, scores: StudyScores | None) -> DataFacts:
    content, split = (scores.data_hash, scores.split_hash) if scores else ("", "")
    try:
        info = load_info(config.prepared_path)
    except DatasetError:
        return DataFacts(config.folder_name, content, split, {})
    if content not in ("", info.content_hash):
        # Prepared anew since the evaluation: the counts would be those of other data.
        return DataFacts(config.folder_name, content, split, {})
    counts = {
        "images to develop on": info.num_development_images,
        "classes to develop on": info.num_development_classes,
        "test images": info.num_test_images,
        "test classes": info.num_test_classes,
    }
    return DataFacts(config.folder_name, info.content_hash, info.split_hash, counts)


def _list_settings(context: StudyContext, arm: str, flat: Mapping[str, Any]) -> dict[str, Any]:
    found = context.study.get_arm(arm)
    keys = dict.fromkeys([*found.layer, *found.space, *SETTINGS])
    return {key: flat[key] for key in keys if key in flat}
