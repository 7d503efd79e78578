"""The prepared data of the plan: present, intact, and the same on every node."""

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dml_core.config.data import DataBase
from dml_core.data.prepared_info import (
    PreparedInfo,
    check_file_sizes,
    check_values_match,
    load_info,
)
from dml_core.data.records import DatasetError
from dml_core.data.splits import FILE_NAME as SPLIT_FILE
from dml_core.data.writing import DEVELOPMENT
from flows.doctor.probes import DoctorRequest, Finding, broken, in_units, ok, warning
from tasks.study import load_context

HASHING_SHARE = 0.5
"""Fraction of a probe's time for hashing; the rest is for what comes before and after it."""
_BLOCK_BYTES = 1 << 22


@dataclass(frozen=True)
class DataFacts:
    """The state of a dataset on one machine."""

    folder: str
    version: str = ""
    """Hashes of its content and split, from `describe_data`; empty if there is none."""
    problem: str = ""
    """The damage; empty if none was found."""
    num_bytes: int = 0
    unchecked_bytes: int = 0
    """Size of the files that there was no time to hash; their sizes are right."""


def probe(request: DoctorRequest) -> list[Finding]:
    """Checks the data of the plan on this machine."""
    datasets = load_context(request.study).datasets
    seconds = request.timeout_seconds * HASHING_SHARE / max(1, len(datasets))
    return [check_dataset(data, seconds=seconds) for data in datasets]


def check_dataset(data: DataBase, *, seconds: float) -> Finding:
    """Checks a dataset on this machine."""
    facts = inspect_data(data.prepared_path, seconds=seconds)
    if facts.version and not facts.problem:
        try:
            check_values_match(load_info(data.prepared_path), data, data.prepared_path)
        except DatasetError as error:
            first, *rest = str(error).splitlines()
            changed = "; ".join(line.strip(" -") for line in rest if line.startswith("  -"))
            return warning("data", f"{first} {changed}", "dml run prepares them again: dml prepare")
    return judge_driver(facts)


def judge_driver(facts: DataFacts) -> Finding:
    """Judges the facts of this machine."""
    if facts.problem:
        problem = facts.problem.removesuffix(" Run: dml prepare").rstrip(".")
        return broken("data", problem, f"Write them again: rm -r {facts.folder}, then: dml prepare")
    if not facts.version:
        return warning(
            "data",
            f"{facts.folder} is not prepared yet",
            "dml run prepares it; to do it now: dml prepare (or dml data pull)",
        )
    if facts.unchecked_bytes:
        return warning(
            "data",
            f"{facts.folder}: {in_units(facts.num_bytes - facts.unchecked_bytes)} match their "
            f"hashes; not enough time for {in_units(facts.unchecked_bytes)}; all sizes are right",
            "Give it longer: dml doctor --timeout 600",
        )
    return ok("data", f"{facts.folder}: {in_units(facts.num_bytes)} match their hashes")


def judge_node(
    node: str, facts: DataFacts, *, expected: str, mode: str, free_bytes: int = 0
) -> Finding:
    """Judges the facts of another node.

    Args:
        node: its address.
        facts: of its prepared folder or, with mode dvc, of the data that it fetched.
        expected: the version on this machine; empty if there is none.
        mode: data_access.mode.
        free_bytes: on the disk for fetched data.
    """
    where = f"{facts.folder} on node {node}"
    if facts.problem:
        remedy = f"On that node remove {facts.folder}; " + (
            "it is fetched again" if mode == "dvc" else "then prepare or copy the data again"
        )
        return broken("data", f"node {node}: {facts.problem}", remedy)
    if not facts.version and mode == "dvc":
        return ok("data", f"node {node} will fetch the data; {in_units(free_bytes)} are free there")
    if not facts.version:
        return broken(
            "data",
            f"{where} does not exist, and with data_access.mode=shared no node fetches anything",
            "Share the folder with that node, or use --set data_access.mode=dvc with a DVC remote",
        )
    if expected and facts.version != expected:
        return broken(
            "data",
            f"{where} holds {facts.version[:12]}..., and this machine {expected[:12]}...",
            "Prepare the same data on every node, share the folder, or use data_access.mode=dvc",
        )
    return ok("data", f"{where}: {in_units(facts.num_bytes)} match their hashes")


def inspect_data(folder: Path, *, seconds: float, development_only: bool = False) -> DataFacts:
    """Compares a prepared dataset with the hashes it was written with, within a time limit.

    Args:
        folder: of the prepared dataset.
        seconds: for hashing; the sizes of all files are checked in any case.
        development_only: skip the test images, which fetched data lack.
    """
    if not (folder / "dataset.json").exists():
        return DataFacts(str(folder))
    try:
        info = load_info(folder)
        names = [name for name in info.files if not development_only or _is_development(name)]
        check_file_sizes(info, folder, names)
    except (DatasetError, OSError) as error:
        return DataFacts(str(folder), problem=str(error))
    return _hash_files(folder, info, names, deadline=time.monotonic() + seconds)


def _hash_files(
    folder: Path, info: PreparedInfo, names: list[str], *, deadline: float
) -> DataFacts:
    unchecked, problem = 0, ""
    for name in sorted(names, key=lambda name: int(info.files[name]["size"])):
        digest = _hash_until(folder / name, deadline)
        if digest is None:
            unchecked += int(info.files[name]["size"])
        elif digest != info.files[name]["sha256"]:
            problem = f"{folder / name} is damaged: its sha256 is not the one it was written with"
            break
    total = sum(int(info.files[name]["size"]) for name in names)
    version = f"{info.content_hash}/{info.split_hash}"
    return DataFacts(str(folder), version, problem, total, unchecked)


def _hash_until(path: Path, deadline: float) -> str | None:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            if time.monotonic() > deadline:
                return None
            digest.update(block)
    return digest.hexdigest()


def _is_development(name: str) -> bool:
    return name == SPLIT_FILE or name.startswith(f"{DEVELOPMENT}/")


def folder_on_node(path: Path, working_folder: str, fetched: Mapping[str, str]) -> Path:
    """Returns the folder of a dataset on a node: the driver's path, or that of the fetched data.

    Args:
        path: of the prepared folder, as configured.
        working_folder: the driver's, the base of relative paths.
        fetched: for each dataset the folder of its fetched copy; empty with mode shared.
    """
    own = Path(working_folder) / path
    if (own / "dataset.json").exists() or str(path) not in fetched:
        return own
    return Path(fetched[str(path)]).expanduser()
