"""Says which sweep a record is of, so that it is found again and never made twice."""

import hashlib
import json
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dml_core.config import TrialConfig
from dml_core.config.loading import to_flat_dict
from dml_core.data.prepared_info import load_info
from dml_core.studies.resolved import ResolvedStudy
from dml_core.trials.key import digest_numbers, hash_training_code, read_libraries, say_libraries


@dataclass(frozen=True)
class SweepFacts:
    """Where a sweep's numbers come from."""

    datasets: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Content hash and split hash of each dataset, by the name of its prepared folder."""
    code: str = ""
    """Hash of the code that the numbers depend on."""
    git_commit: str = ""
    """The code's commit; empty outside of a repository."""
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
    """One sweep of one study over one state of the data and the code."""

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
        tags["mlflow.note.content"] = study.definition.question
        return cls(
            study.name, study.digest, facts.data_hash, facts.code, tags, libraries=facts.libraries
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "SweepIdentity":
        """Returns the identity that `to_dict` described."""
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Returns the identity as JSON-like values."""
        return asdict(self)

    @property
    def key(self) -> str:
        """A hash that tells this sweep from every other one."""
        return hash_key(self.study, self.digest, self.data_hash, self.code, self.libraries)


def hash_key(*parts: str) -> str:
    """Returns a hash of texts; unlike these it is safe in any search or file name."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def find_differing_keys(study: ResolvedStudy) -> list[str]:
    """Returns the keys that arms set and whose values are not the same in all arms."""
    keys = sorted({key for arm in study.arms for key in arm.layer})
    flats = [to_flat_dict(study.arm_config(arm.name)) for arm in study.arms]
    return [key for key in keys if any(flat.get(key) != flats[0].get(key) for flat in flats)]


def make_trial_key(trial_id: str, config: TrialConfig) -> str:
    """Returns a hash of a trial and all that its numbers depend on.

    A search that goes another way may give the same id to another configuration.
    """
    return hash_key(trial_id, digest_numbers(config))


def git_tags(facts: SweepFacts) -> dict[str, str]:
    """Returns the tags of the code's commit; none outside of a repository."""
    if not facts.git_commit:
        return {}
    return {"git_commit": facts.git_commit, "mlflow.source.git.commit": facts.git_commit}


def read_sweep_facts(study: ResolvedStudy, *, project: Path) -> SweepFacts:
    """Returns what is known of a study's data and of the code in a folder.

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
    """Returns the commit that a folder's repository is at; empty where there is none."""
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
