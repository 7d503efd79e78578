"""The data of the plan: there, whole, and the same on every node."""

from collections.abc import Mapping
from pathlib import Path

from dml_core.config.data import DataBase
from dml_core.data.prepared_info import check_values_match, load_info
from dml_core.data.records import DatasetError
from flows.doctor.data_facts import DataFacts, look_at_data
from flows.doctor.findings import Finding, broken, in_units, ok, warning
from flows.doctor.request import DoctorRequest
from tasks.study import load_context

HASHING_SHARE = 0.5
"""Of a probe's time, for hashing; the rest is for what comes before and after it."""


def probe(request: DoctorRequest) -> list[Finding]:
    """Looks at the data of the plan on this machine."""
    datasets = load_context(request.study).datasets
    seconds = request.timeout_seconds * HASHING_SHARE / max(1, len(datasets))
    return [check_dataset(data, seconds=seconds) for data in datasets]


def check_dataset(data: DataBase, *, seconds: float) -> Finding:
    """Tells how a dataset is on this machine."""
    facts = look_at_data(data.prepared_path, seconds=seconds)
    if facts.version and not facts.problem:
        try:
            check_values_match(load_info(data.prepared_path), data, data.prepared_path)
        except DatasetError as error:
            first, *rest = str(error).splitlines()
            changed = "; ".join(line.strip(" -") for line in rest if line.startswith("  -"))
            return warning("data", f"{first} {changed}", "dml run prepares them anew: dml prepare")
    return judge_driver(facts)


def judge_driver(facts: DataFacts) -> Finding:
    """Tells what the facts of this machine mean."""
    if facts.problem:
        problem = facts.problem.removesuffix(" Run: dml prepare").rstrip(".")
        return broken("data", problem, f"Write them anew: rm -r {facts.folder}, then: dml prepare")
    if not facts.version:
        return warning(
            "data",
            f"{facts.folder} is not prepared yet",
            "dml run does that by itself; to see to it now: dml prepare (or dml data pull)",
        )
    if facts.unchecked_bytes:
        return warning(
            "data",
            f"{facts.folder}: {in_units(facts.num_bytes - facts.unchecked_bytes)} have their "
            f"hashes, there was no time for {in_units(facts.unchecked_bytes)}; all sizes are right",
            "Give it longer: dml doctor --timeout 600",
        )
    return ok("data", f"{facts.folder}: {in_units(facts.num_bytes)} have their hashes")


def judge_node(
    node: str, facts: DataFacts, *, expected: str, mode: str, free_bytes: int = 0
) -> Finding:
    """Tells what the facts of another node mean.

    Args:
        node: its address.
        facts: of its prepared folder or, with mode dvc, of what it has fetched.
        expected: the version on this machine; empty where there is none.
        mode: data_access.mode.
        free_bytes: on the disk that it would fetch to.
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
    return ok("data", f"{where}: {in_units(facts.num_bytes)} have their hashes")


def folder_on_node(path: Path, working_folder: str, fetched: Mapping[str, str]) -> Path:
    """Returns where a node looks for a dataset: where the driver has it, or what it fetched.

    Args:
        path: of the prepared folder, as the configuration has it.
        working_folder: the driver's, that relative paths start from.
        fetched: for each dataset the folder that a node fetches it to; empty with mode shared.
    """
    own = Path(working_folder) / path
    if (own / "dataset.json").exists() or str(path) not in fetched:
        return own
    return Path(fetched[str(path)]).expanduser()
