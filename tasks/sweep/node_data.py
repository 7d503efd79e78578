"""The inputs of trials: the ledger of their study, and data read in place or fetched once."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dml_core.config import TrialConfig
from dml_core.config.pipeline import DataAccessConfig, RayConfig
from dml_core.data.prepared import DevelopmentData, open_development
from dml_core.data.prepared_info import load_info
from dml_core.data.writing import DEVELOPMENT
from dml_core.devices import expect_device
from dml_core.studies.resolved import ResolvedStudy
from dml_core.trials.key import hash_training_code
from dml_core.trials.ledger import Ledger
from dml_core.trials.spec import TrialSpec
from dml_core.trials.store import TrialStore, open_store
from tasks.study import StudyContext
from tasks.versioning.restoring import Identity, ensure_whole, find_damage, identify_files

DataSource = dict[str, Any]
"""Where a node fetches and keeps a dataset, as plain values; empty if all nodes share it."""

_MAX_OPEN = 4
_opened: dict[tuple[str, str, Identity], DevelopmentData] = {}


def describe_data(config: TrialConfig) -> str:
    """Returns the hashes of a trial's prepared data and split; empty if they are not here."""
    if not (config.data.prepared_path / "dataset.json").exists():
        return ""
    info = load_info(config.data.prepared_path)
    return f"{info.content_hash}/{info.split_hash}"


def remember_versions() -> Callable[[TrialConfig], str]:
    """Returns a `describe_data` that reads each dataset once."""
    known: dict[Path, str] = {}

    def find(config: TrialConfig) -> str:
        path = config.data.prepared_path
        if path not in known:
            known[path] = describe_data(config)
        return known[path]

    return find


def open_ledger(folder: Path, ray: RayConfig, *, store: TrialStore) -> Ledger:
    """Returns the ledger of a study for this code and the installed libraries.

    Args:
        folder: the study's working folder.
        ray: where its trials run.
        store: the journals of all studies.
    """
    is_here = ray.address == "local"
    return Ledger(
        folder,
        store,
        code=hash_training_code(),
        data_version=remember_versions(),
        expect_device=lambda config: expect_device(config.training.device, is_here=is_here),
    )


def count_shared_trials(context: StudyContext) -> int:
    """Returns how many trials of a study need no training, since another study has trained them.

    Only trials that are known before the study runs are counted.
    """
    ray, store = context.project.pipeline.ray, open_store(context.store_location)
    ledger = open_ledger(context.working_folder, ray, store=store)
    there = set(store.list_keys())
    return sum(
        not ledger.knows(spec) and ledger.key(spec) in there and ledger.journal(spec).has_ended()
        for spec in list_known_trials(context.study)
    )


def list_known_trials(study: ResolvedStudy) -> list[TrialSpec]:
    """Returns the trials of a study that depend on no result.

    These are all of a grid or random search that does not prune, and the repeats of arms that tune
    nothing.
    """
    is_listed = study.searcher != "tpe" and study.scheduler.name == "none"
    untuned: dict[str, dict[str, Any]] = {arm.name: {} for arm in study.arms if not arm.space}
    return [*(study.search_specs() if is_listed else []), *study.repeat_specs(untuned)]


def remember_sources(access: DataAccessConfig) -> Callable[[TrialConfig], DataSource]:
    """Returns a function that finds where nodes fetch a trial's data; called on the driver."""
    known: dict[Path, DataSource] = {}

    def find(config: TrialConfig) -> DataSource:
        path = config.data.prepared_path
        if access.mode == "shared":
            return {}
        if path not in known:
            from tasks.versioning.copies import locate_prepared

            source = locate_prepared(Path.cwd(), path, remote=access.remote)
            known[path] = {"source": asdict(source), "cache_root": access.cache_root}
        return known[path]

    return find


def provide_data(
    config: TrialConfig, source: DataSource, *, expected: str, part: str = DEVELOPMENT
) -> TrialConfig:
    """Returns the configuration with the data's folder on this node; fetches the data if needed.

    Args:
        config: the trial's.
        source: from `remember_sources`.
        expected: `describe_data` of the driver.
        part: the images that are about to be read.

    Raises:
        ValueError: when dvc.lock names other data than the driver has.
    """
    if not source:
        ensure_whole(config.data, (part,))
        return config
    # Damaged data of this node are not restored, since the remote has intact ones.
    is_whole = not find_damage(config.data.prepared_path, (part,))
    if is_whole and expected and describe_data(config) == expected:
        return config
    from tasks.versioning.copies import PreparedSource, fetch_prepared
    from tasks.versioning.remote import Remote

    plain = source["source"]
    located = PreparedSource(plain["name"], plain["md5"], Remote(**plain["remote"]))
    folder = fetch_prepared(located, cache_root=Path(source["cache_root"]), part=part)
    data = config.data.model_copy(update={"prepared_root": str(folder.parent)})
    fetched = config.model_copy(update={"data": data})
    if expected and (found := describe_data(fetched)) != expected:
        raise ValueError(
            f"dataset {located.name!r} in dvc.lock, version {located.md5}, must be the data that "
            f"the sweep was started with, {expected}. Got {found}: they were prepared anew since. "
            "On the driver, run: dvc commit prepare, then: dml data push"
        )
    return fetched


def open_once(config: TrialConfig, *, expected: str) -> DevelopmentData:
    """Opens a trial's data, or returns them if this process has them open.

    The pixels are memory-mapped, so all trials of a node share them.
    """
    found = describe_data(config)
    if expected and found and found != expected:
        raise ValueError(
            f"{config.data.prepared_path} on this node must hold the data that the sweep was "
            f"started with, {expected}. Got {found}. Prepare the same data on every node, or "
            "share the folder."
        )
    # Restored or newly prepared data must be mapped again.
    key = found, config.data.model_dump_json(), identify_files(config.data)
    if key not in _opened:
        while len(_opened) >= _MAX_OPEN:
            del _opened[next(iter(_opened))]
        _opened[key] = open_development(config.data)
    return _opened[key]
