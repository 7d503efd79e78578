"""Identity and values of MLflow runs: the sweep, the params, the metrics and the tags."""

import hashlib
import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any

from dml_core.config import TrialConfig
from dml_core.config.loading import to_flat_dict
from dml_core.config.pipeline import MlflowConfig
from dml_core.data.prepared_info import load_info
from dml_core.studies.resolved import ResolvedStudy
from dml_core.trials.key import digest_config, hash_training_code, read_libraries, say_libraries


@dataclass(frozen=True)
class SweepFacts:
    """The data, code and libraries of a sweep's numbers."""

    datasets: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Content hash and split hash of each dataset, by the name of its prepared folder."""
    code: str = ""
    """Hash of the training code."""
    git_commit: str = ""
    """The code's commit; empty outside a repository."""
    libraries: str = ""
    """Versions of the numerical libraries."""

    def hashes_of(self, config: TrialConfig) -> tuple[str, str]:
        """Returns the content hash and the split hash of a trial's data; empty where unknown."""
        return self.datasets.get(config.data.folder_name, ("", ""))

    @property
    def data_hash(self) -> str:
        """The content hash, or one hash over those of several datasets."""
        return _join([content for content, _ in self.datasets.values()])

    @property
    def split_hash(self) -> str:
        """The split hash, or one hash over those of several datasets."""
        return _join([split for _, split in self.datasets.values()])


@dataclass(frozen=True)
class SweepIdentity:
    """One sweep of one study with one version of the data and the code."""

    study: str
    digest: str
    data_hash: str
    code: str
    tags: dict[str, str] = field(default_factory=dict)
    libraries: str = ""

    @classmethod
    def of(cls, study: ResolvedStudy, facts: SweepFacts) -> "SweepIdentity":
        """Returns the identity of a study's sweep."""
        tags = {
            "study": study.name,
            "stage": "sweep",
            "dml.digest": study.digest,
            "dml.code": facts.code,
            "dml.libraries": facts.libraries,
            "baseline": study.baseline,
            "differs": ",".join(find_differing_keys(study)),
            "data_hash": facts.data_hash,
            "split_hash": facts.split_hash,
            **git_tags(facts),
        }
        tags["mlflow.note.content"] = escape_markdown(study.definition.question, colon="&#58;")
        return cls(
            study.name, study.digest, facts.data_hash, facts.code, tags, libraries=facts.libraries
        )

    @property
    def key(self) -> str:
        """A hash that identifies this sweep."""
        return hash_key(self.study, self.digest, self.data_hash, self.code, self.libraries)


def hash_key(*parts: str) -> str:
    """Returns a hash of texts, which is safe in searches and file names."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def find_differing_keys(study: ResolvedStudy) -> list[str]:
    """Returns the keys that arms set and whose values differ between arms."""
    keys = sorted({key for arm in study.arms for key in arm.layer})
    flats = [to_flat_dict(study.arm_config(arm.name)) for arm in study.arms]
    return [key for key in keys if any(flat.get(key) != flats[0].get(key) for flat in flats)]


def make_trial_key(trial_id: str, config: TrialConfig) -> str:
    """Returns a hash of a trial and all that its numbers depend on.

    A search that goes another way may give the same id to another configuration.
    """
    return hash_key(trial_id, digest_config(config))


def git_tags(facts: SweepFacts) -> dict[str, str]:
    """Returns the tags of the code's commit; none outside a repository."""
    if not facts.git_commit:
        return {}
    return {"git_commit": facts.git_commit, "mlflow.source.git.commit": facts.git_commit}


def read_sweep_facts(study: ResolvedStudy, *, project: Path) -> SweepFacts:
    """Returns the hashes of a study's data and of the code in a folder.

    Raises:
        DatasetError: where a dataset is not prepared.
    """
    configs = [study.arm_config(arm.name) for arm in study.arms]
    folders = {config.data.folder_name: config.data.prepared_path for config in configs}
    infos = {name: load_info(path) for name, path in sorted(folders.items())}
    return SweepFacts(
        datasets={name: (info.content_hash, info.split_hash) for name, info in infos.items()},
        code=hash_training_code(),
        git_commit=find_git_commit(project),
        libraries=say_libraries(read_libraries()),
    )


def find_git_commit(project: Path) -> str:
    """Returns the commit of a folder's repository; empty where there is none."""
    try:
        found = subprocess.run(
            ["git", "-C", str(project), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return found.stdout.strip()


def _join(hashes: list[str]) -> str:
    distinct = sorted(set(hashes))
    return distinct[0] if len(distinct) == 1 else hash_key(*distinct) if distinct else ""


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
    """Returns whether two texts have the same value, as 7 and 7.0 have."""
    if one == other:
        return True
    try:
        return float(one) == float(other)
    except ValueError:
        return False


def to_epoch_metrics(report: Mapping[str, Any]) -> dict[str, float]:
    """Returns the metrics of a line of epochs.jsonl by their dotted names."""
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
    """Returns the values that are numbers, under names that MLflow accepts."""
    return {
        to_name(name): float(value)
        for name, value in values.items()
        # Counts of images are the same in every epoch and crowd the page.
        if isinstance(value, Real) and ".num_" not in name
    }


def to_name(text: str) -> str:
    """Returns a metric or param name that MLflow accepts, whatever the data contain."""
    name = re.sub(r"[^\w.\- ]", "_", text, flags=re.ASCII).strip(" .") or "_"
    # MLflow reads names of dots alone as folders.
    return re.sub(r"\.{2,}", ".", name)[:MAX_NAME_LENGTH]


def name_model(config: MlflowConfig, study: str) -> str:
    """Returns the registered name of a study's model.

    Args:
        config: the pattern of the name.
        study: name of the study, or of the folder of its results.
    """
    return to_name(config.registered_model.replace("{study}", study))


def to_tags(values: Mapping[str, Any]) -> dict[str, str]:
    """Returns tags as texts of a length that MLflow accepts, without those that are None."""
    return {
        key: shorten(str(value).replace("\x00", ""), MAX_TAG_LENGTH)
        for key, value in values.items()
        if value is not None
    }


def shorten(text: str, length: int) -> str:
    """Returns a text cut to a length, with an ellipsis where it was longer."""
    return text if len(text) <= length else text[: length - 1] + "…"


def escape_markdown(text: str, *, colon: str) -> str:
    """Returns a text that Markdown shows literally: no tag, no link, no picture.

    MLflow's descriptions and Prefect's artifacts are Markdown, which passes HTML on.

    Args:
        text: any text.
        colon: a colon that does not turn a bare address into a link: an entity on MLflow's page,
            with a backslash on Prefect's. Neither page understands the other form.
    """
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    text = re.sub(r"([\\`\[\]!|])", r"\\\1", text)
    return text.replace("://", f"{colon}//").replace("www.", r"www\.")
