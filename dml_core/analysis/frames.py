"""A study's results as pandas tables."""

import json
from pathlib import Path
from typing import Any

import pandas as pd

from dml_core.config.loading import flatten
from dml_core.config.problems import suggest
from dml_core.measures.results import read_scores
from dml_core.trials.table import VALIDATION_PREFIX

TEST_PREFIX = "test."
_KEY_COLUMNS = {"seed": "seed", "data.fold": "fold"}
"""Configuration keys that trials.parquet has as columns."""


def read_results(study: str, *, root: str | Path = "results") -> pd.DataFrame:
    """Returns the test scores of a study, one row for each arm and seed.

    Columns: `arm`, `seed`; every configuration key whose value differs between the rows, such as
    `loss.name`; `epochs` and `train_seconds` of the training; `validation.` and `test.` metrics.

    Args:
        study: name of the study; with a profile `NAME@PROFILE`, as its folder is named.
        root: value of sweep.results_root.

    Raises:
        FileNotFoundError: when the study was not run or not evaluated.
    """
    trials = _read_trials(study, root)
    scores = read_scores(Path(root) / study / "evaluate").scores
    tests = pd.DataFrame(
        [
            {"arm": arm, "seed": seed} | {TEST_PREFIX + name: value for name, value in own.items()}
            for arm, by_seed in scores.items()
            for seed, own in by_seed.items()
        ]
    )
    trained = _spread_settings(trials[trials["phase"] == "repeat"])
    settings = [name for name in trained if name not in trials.columns]
    metrics = [name for name in trained if name.startswith(VALIDATION_PREFIX)]
    kept = ["arm", "seed", *settings, "epochs", "train_seconds", *metrics]
    return trained[kept].merge(tests, on=["arm", "seed"], validate="one_to_one")


def read_trial_results(study: str, *, root: str | Path = "results") -> pd.DataFrame:
    """Returns all trials of a study's sweep, one row each, in the order of the sweep.

    Columns: those of trials.parquet, with the validation metrics of the selected epoch; every
    configuration key whose value differs between trials replaces the JSON of the configuration.

    Args:
        study: name of the study; with a profile `NAME@PROFILE`, as its folder is named.
        root: value of sweep.results_root.

    Raises:
        FileNotFoundError: when the study was not run.
    """
    return _spread_settings(_read_trials(study, root))


def _read_trials(study: str, root: str | Path) -> pd.DataFrame:
    path = Path(root) / study / "sweep" / "trials.parquet"
    if not path.is_file():
        known = sorted(each.parts[-3] for each in Path(root).glob("*/sweep/trials.parquet"))
        found = f" Found results of {', '.join(known)}." if known else ""
        raise FileNotFoundError(
            f"{path} does not exist: study {study!r} has no results in {root}.{found}"
            f"{suggest(study, known)} Run: dml run {study.partition('@')[0]}"
        )
    return pd.read_parquet(path)


def _spread_settings(trials: pd.DataFrame) -> pd.DataFrame:
    """Replaces the JSON columns by one column for each key whose value is not the same in all."""
    settings = [flatten(json.loads(text)) for text in trials["config"]]
    names = dict.fromkeys(name for each in settings for name in each if name not in _KEY_COLUMNS)
    spread = {
        name: [each.get(name) for each in settings] for name in names if _differs(settings, name)
    }
    plain = trials.drop(columns=["config", "values"])
    return pd.concat([plain, pd.DataFrame(spread, index=trials.index)], axis=1)


def _differs(settings: list[dict[str, Any]], name: str) -> bool:
    return len({json.dumps(each.get(name)) for each in settings}) > 1
