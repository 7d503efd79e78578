"""This machine: Python, installed packages, imported sources, and the ports of `dml up`."""

import json
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from urllib.parse import unquote, urlsplit

from flows.doctor.probes import Finding, broken, ok, warning
from flows.servers.network import BusyPortError, check_port_is_free, find_free_port
from flows.servers.record import ServerRecord
from tasks.sources import find_tree, imported_tree

PYTHONS = ((3, 11), (3, 12), (3, 13))
"""Supported versions, as in requires-python of pyproject.toml."""
_FIRST_PYTHON = sys.version_info[:2] == PYTHONS[0]
LOCK_FILE = "requirements{}.lock".format(
    "" if _FIRST_PYTHON else f"-{sys.version_info[0]}.{sys.version_info[1]}"
)
"""The lock of the running Python; requirements.lock is that of the first supported version."""
CUDA_PACKAGES = ("cuda-", "nvidia-", "triton")
"""Prefixes of the locked packages that a CPU build of torch does not need."""
DEFAULT_PORTS = {"prefect": 4200, "mlflow": 5000}
TITLES = {"prefect": "Prefect server", "mlflow": "MLflow server"}
HOST = "127.0.0.1"
_SHOWN = 5
_PROJECT = Path(__file__).parents[2]


def check_python(found: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    """Checks that the project runs on this Python."""
    shown = ".".join(map(str, found))
    if found[:2] not in PYTHONS:
        first, last = (".".join(map(str, PYTHONS[place])) for place in (0, -1))
        return broken(
            "python",
            f"Python must be {first} to {last}. Got {shown}.",
            "Create the environment again: make clean setup",
        )
    return ok("python", f"Python {shown}")


def check_sources(folder: Path, installed: Path | None) -> Finding:
    """Checks which sources a command in a folder imports, and whether the environment is theirs.

    Args:
        folder: the current one.
        installed: the tree that this environment was installed for; None if unknown.
    """
    used, wanted = imported_tree(), find_tree(folder)
    if wanted is not None and wanted != used:
        return broken(
            "sources",
            f"this process imports {used}, and this folder has sources too: {wanted}",
            "Start it with the command dml of this folder's environment: make setup",
        )
    if installed is not None and installed != used:
        return warning(
            "sources",
            f"this environment was installed for {installed}; all processes of a command here "
            f"import {used}",
            "Give each clone its environment, with the packages of its lock: make setup",
        )
    return ok("sources", f"all processes of a command import {used}")


def find_installed_tree() -> Path | None:
    """Returns the folder that this environment's `dml` was installed from; None if unknown."""
    try:
        text = distribution("dml").read_text("direct_url.json")
    except PackageNotFoundError:
        return None
    url = urlsplit(json.loads(text)["url"]) if text else None
    return Path(unquote(url.path)).resolve() if url and url.scheme == "file" else None


def check_versions(folder: Path) -> Finding:
    """Compares the installed packages with requirements.lock."""
    path = next((p for p in (folder / LOCK_FILE, _PROJECT / LOCK_FILE) if p.is_file()), None)
    if path is None:
        return warning(
            "versions",
            f"there is no {LOCK_FILE} to compare the installed packages with",
            "Run dml doctor in the project's folder",
        )
    locked = read_lock(path.read_text(encoding="utf-8"))
    installed = {name: find_version(name) for name in locked}
    if installed.get("torch", "").endswith("+cpu"):
        locked = {n: v for n, v in locked.items() if not n.startswith(CUDA_PACKAGES)}
    return judge_versions(locked, installed)


def read_lock(text: str) -> dict[str, str]:
    """Returns the versions in a lock file of `name==version` lines."""
    lines = [line.split("#")[0].split(";")[0].strip() for line in text.splitlines()]
    return dict(line.split("==") for line in lines if "==" in line)


def find_version(name: str) -> str:
    """Returns the installed version of a package; empty if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def judge_versions(locked: Mapping[str, str], installed: Mapping[str, str]) -> Finding:
    """Compares versions without the build suffix, such as +cpu."""
    wrong = [
        f"{name} {installed[name].partition('+')[0] or 'is missing'} (locked: {wanted})"
        for name, wanted in locked.items()
        if installed[name].partition("+")[0] != wanted.partition("+")[0]
    ]
    if not wrong:
        return ok("versions", f"{len(locked)} packages match {LOCK_FILE}")
    more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
    return broken(
        "versions",
        f"{len(wrong)} of {len(locked)} packages do not match {LOCK_FILE}: "
        f"{', '.join(wrong[:_SHOWN])}{more}",
        "Install the locked packages: make setup",
    )


def check_ports(
    wanted: Mapping[str, int | None], records: Mapping[str, ServerRecord]
) -> list[Finding]:
    """Checks that the servers could start on their ports.

    Args:
        wanted: for each server the requested port; None takes the default of `dml up`, which need
            not be free, since only `dml up` uses it.
        records: the servers that `dml up` has started here; they hold their own ports.
    """
    try:
        find_free_port(HOST)
    except ValueError as error:
        return [broken("ports", str(error), "Free some ports, or raise ip_local_port_range")]
    missing = {
        name: port
        for name, port in wanted.items()
        if name not in records or port not in (None, urlsplit(records[name].address).port)
    }
    if not missing:
        return [ok("ports", "the servers of dml up hold their ports")]
    return [_check_port(name, port) for name, port in missing.items()]


def _check_port(name: str, wanted: int | None) -> Finding:
    port = DEFAULT_PORTS[name] if wanted is None else wanted
    title = TITLES[name]
    try:
        check_port_is_free(port, host=HOST, title=title, option=f"--{name}-port")
    except BusyPortError as error:
        message, _, remedy = str(error).partition(". Choose another port: ")
        state = warning if wanted is None else broken
        return state("ports", message, f"Choose another port: {remedy}")
    return ok("ports", f"port {port} is free for the {title}")
