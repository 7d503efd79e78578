"""Turns configurations and reports into what MLflow stores: short texts and flat numbers."""

import json
import re
from collections.abc import Mapping
from numbers import Real
from typing import Any

from dml_core.config import TrialConfig
from dml_core.config.loading import to_flat_dict

MAX_PARAM_LENGTH = 6000
MAX_TAG_LENGTH = 8000
MAX_NAME_LENGTH = 250

_REPORT_NAMES = {
    "train_loss": "train.loss",
    "active_fraction": "train.active_fraction",
    "images_per_second": "train.images_per_second",
    "train_seconds": "train.seconds",
    "peak_memory_mib": "train.peak_memory_mib",
}


def to_params(config: TrialConfig) -> dict[str, str]:
    """Returns every knob of a trial as text, by its dotted key."""
    return {to_name(key): to_param_text(value) for key, value in to_flat_dict(config).items()}


def to_param_text(value: Any) -> str:
    """Returns a value as text: words as they are, everything else as JSON."""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return shorten(text, MAX_PARAM_LENGTH)


def is_same_param(one: str, other: str) -> bool:
    """Whether two texts stand for the same value, as 7 and 7.0 do."""
    if one == other:
        return True
    try:
        return float(one) == float(other)
    except ValueError:
        return False


def to_epoch_metrics(report: Mapping[str, Any]) -> dict[str, float]:
    """Returns the numbers of an EpochReport, given as a mapping, by their dotted names."""
    numbers = {name: report.get(key) for key, name in _REPORT_NAMES.items()}
    groups = {
        "train.": report.get("diagnostics"),
        "train.learning_rate.": report.get("learning_rates"),
        "validation.": report.get("validation"),
    }
    for prefix, group in groups.items():
        numbers |= {f"{prefix}{name}": value for name, value in (group or {}).items()}
    return keep_numbers(numbers)


def keep_numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Returns the values that are numbers, under names that MLflow takes."""
    return {
        to_name(name): float(value)
        for name, value in values.items()
        # Counts of images say the same in every epoch and crowd the page.
        if isinstance(value, Real) and ".num_" not in name
    }


def to_name(text: str) -> str:
    """Returns a name of a metric or param that MLflow takes, whatever the data call it."""
    name = re.sub(r"[^\w.\- ]", "_", text, flags=re.ASCII).strip(" .") or "_"
    # Names of dots alone would be read as folders.
    return re.sub(r"\.{2,}", ".", name)[:MAX_NAME_LENGTH]


def to_tags(values: Mapping[str, Any]) -> dict[str, str]:
    """Returns tags as texts of a length that MLflow takes; what is None is left out."""
    return {
        key: shorten(str(value).replace("\x00", ""), MAX_TAG_LENGTH)
        for key, value in values.items()
        if value is not None
    }


def shorten(text: str, length: int) -> str:
    """Returns a text cut to a length, with an ellipsis where something was cut."""
    return text if len(text) <= length else text[: length - 1] + "…"
